"""Whether outputs agree: by token ids, by a tokenizer, by words; and who cannot win."""

from inferometer.analysis.agreement import EngineAgreement, compare_outputs, reference_of
from inferometer.campaign import EngineRecord, Output
from inferometer.config.engines import Agreement


def engine(name: str, *texts: str, ids: tuple[tuple[int, ...], ...] | None = None, **about: object) -> EngineRecord:
    outputs = tuple(Output(text, None if ids is None else ids[number]) for number, text in enumerate(texts))
    known: dict[str, object] = {"type": name, "mode": "serve", "status": "ok", "outputs": outputs}
    return EngineRecord(name=name, **(known | about))  # type: ignore[arg-type]


def compared(*engines: EngineRecord, **wanted: object) -> dict[str, EngineAgreement]:
    return compare_outputs(engines, Agreement(**wanted))  # type: ignore[arg-type]


def test_the_reference_is_transformers_one_at_a_time_else_the_first_with_outputs() -> None:
    first, serial = engine("vllm", "a"), engine("hf", "a", type="transformers", mode="serial")
    silent = engine("silent", "", "")
    assert reference_of([silent, first, serial], Agreement()) is serial
    assert reference_of([silent, first], Agreement()) is first
    assert reference_of([first, serial], Agreement(reference="vllm")) is first
    assert reference_of([first], Agreement(reference="gone")) is None


def test_words_are_compared_without_ids_and_without_a_tokenizer() -> None:
    found = compared(engine("a", "one two three four", "x y"), engine("b", "one two 3 four", "x y"))["b"]
    assert (found.by, found.verdict, found.prompts) == ("words", "differs", 2)
    assert found.exact == 0.5 and found.tokens == 5 / 6 and found.prefix == (2 + 2) / 2
    assert found.examples[0].prefix == 2 and found.examples[0].text == "one two 3 four"
    assert (
        found.text
        == "1 of 2 outputs and 83% of all tokens are those of a; outputs first differ after 2 tokens on average"
    )


def test_ids_count_more_than_texts_if_both_have_them() -> None:
    a, b = engine("a", "same", ids=((1, 2, 3),)), engine("b", "same", ids=((1, 2, 4),))
    assert compared(a, b)["b"].by == "token ids" and compared(a, b)["b"].tokens == 2 / 3
    without = engine("c", "same")
    assert compared(a, without)["c"].verdict == "agrees" and compared(a, without)["c"].by == "words"


def test_the_tokenizer_splits_texts() -> None:
    engines = [engine("a", "abcd"), engine("b", "abxx")]
    found = compare_outputs(engines, Agreement(), lambda text: [ord(letter) for letter in text])["b"]
    assert (found.by, found.tokens, found.prefix) == ("tokenizer", 0.5, 2)
    assert found.verdict == "differs" and found.can_win  # exactly the least share


def test_a_shorter_output_agrees_only_as_far_as_it_goes() -> None:
    assert compared(engine("a", "1 2 3 4"), engine("b", "1 2"))["b"].tokens == 0.5


def test_nonsense_and_nothing_cannot_win() -> None:
    silent = engine("c", "", "1", outputs=(Output(""), Output("", error="HTTP 500")))
    found = compared(engine("a", "1 2 3 4", "5"), engine("b", "9 9 9 9", "5"), silent, least=0.6)
    assert found["b"].verdict == "nonsense" and not found["b"].can_win and "at least 60%" in found["b"].text
    assert found["c"].verdict == "nothing" and not found["c"].can_win
    assert found["c"].text == "2 of 2 outputs are empty: HTTP 500"
    assert found["a"].verdict == "reference" and found["a"].can_win


def test_an_empty_output_counts_by_its_tokens_and_only_if_the_reference_has_text() -> None:
    special = engine("a", "", "1 2 3 4", ids=((4, 4), (1, 2, 3, 4)))
    found = compared(special, engine("b", "", "1 2 3 4"), engine("c", "", "", ids=((4, 4), (1, 2, 3, 9))))
    assert (found["b"].verdict, found["b"].by, found["b"].empty) == ("agrees", "words", 0)
    assert (found["c"].verdict, found["c"].by, found["c"].tokens) == ("differs", "token ids", 5 / 6)
    one = engine("d", outputs=(Output("1 2 3 4"), Output("", error="HTTP 500")))
    found = compared(engine("a", "1 2 3 4", "5"), one, least=0.6)
    assert found["d"].can_win and found["d"].text.startswith(
        "1 of 2 outputs is empty: HTTP 500; 1 of 2 outputs and 80%"
    )
    found = compared(engine("a", "", ""), engine("b", "", ""))
    assert (found["b"].verdict, found["a"].text) == (
        "agrees",
        "the others are compared with it; 2 of 2 outputs are empty",
    )


def test_without_a_reference_nothing_is_compared() -> None:
    found = compared(engine("a", "1"), engine("b", "2"), reference="gone")
    assert {each.verdict for each in found.values()} == {"not compared"}
    assert found["b"].can_win and found["b"].text == "not compared: gone has no outputs"
