"""The prompt of a session as JSON: the same as encoding all of it at once."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.types import Messages
from inferometer.wire.history import history, joined

texts = st.text(max_size=20)


def user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


@given(system=texts, turns=st.lists(st.tuples(texts, texts), min_size=1, max_size=4), last=texts)
def test_messages_are_those_of_all_turns(system: str, turns: list[tuple[str, str]], last: str) -> None:
    kept = history("messages")
    expected: Messages = [{"role": "system", "content": system}]
    kept.begin([*expected, *user(turns[0][0])])
    for number, (asked, answer) in enumerate(turns):
        expected += [*user(asked), {"role": "assistant", "content": answer}]
        if number:
            kept.add(user(asked))
        kept.respond(answer, True)
    kept.add(user(last))
    assert msgspec.json.decode(kept.json()) == [*expected, *user(last)]


@given(first=texts, answer=texts, last=texts)
def test_text_goes_on_with_the_servers_own_response(first: str, answer: str, last: str) -> None:
    kept = history("text")
    kept.begin(first)
    kept.respond(answer, True)
    kept.add(user(f" {last}"))
    assert msgspec.json.decode(kept.json()) == f"{first}{answer} {last}"


def test_texts_without_a_space_before_them_start_on_a_new_line() -> None:
    kept = history("text")
    kept.begin([{"role": "system", "content": "Be brief."}, *user("Hello")])
    kept.respond("Hi", False)
    kept.add(user("Go on"))
    assert msgspec.json.decode(kept.json()) == "Be brief.\nHello\nHi\nGo on"
    assert joined([{"role": "system", "content": [{"type": "text", "text": "a"}]}, *user(" b"), *user("c")]) == "a b\nc"


@pytest.mark.parametrize("form", ["messages", "text"])
def test_turns_are_dropped_at_either_end(form: str) -> None:
    kept = history(form)
    kept.begin([{"role": "system", "content": "s"}, *user("1")])
    for number in ("2", "3"):
        kept.respond(f"r{number}", True)
        kept.add(user(number))
    kept.withdraw()
    kept.drop_oldest()
    found = msgspec.json.decode(kept.json())
    assert found == (
        "s\n2r3"
        if form == "text"
        else [{"role": "system", "content": "s"}, *user("2"), {"role": "assistant", "content": "r3"}]
    )


def test_a_history_without_a_system_prompt_may_lose_its_first_turn() -> None:
    kept = history("messages")
    kept.begin("one")
    kept.withdraw()
    kept.add(user("two"))
    assert msgspec.json.decode(kept.json()) == user("two")
