"""The salt changes the first words of synthetic prompts, and nothing else: not their length, nor the workload's digest."""

from pathlib import Path

import pytest

from inferometer import workload
from inferometer.config.data import Data, Mix, Prompts, Synthetic, Trace, TrafficClass
from inferometer.workload.text import HEAD


def texts(spec: Synthetic, count: int = 50) -> list[object]:
    return [request.payload for request in workload.build(spec, 0, range(count))]


def test_another_salt_changes_the_first_words_and_keeps_the_rest() -> None:
    one, other = (texts(Synthetic(salt=salt)) for salt in ("one", "other"))
    for a, b in zip(one, other, strict=True):
        first, second = str(a).split(" "), str(b).split(" ")
        assert first[:HEAD] != second[:HEAD]
        assert first[HEAD:] == second[HEAD:]
    one, other = ({" ".join(str(t).split(" ")[:HEAD]) for t in texts(Synthetic(salt=s), 1000)} for s in ("1", "2"))
    assert len(one) == len(other) == 1000
    assert not one & other
    # A salt in front of all prompts would be a prefix that the server's cache finds.
    assert len({str(text).split(" ")[0] for text in texts(Synthetic(salt="word"))}) == 50


@pytest.mark.parametrize("n", [1, 2])
def test_a_prompt_shorter_than_the_head_is_salted_as_far_as_it_goes(n: int) -> None:
    one, other = (texts(Synthetic(input=n, salt=salt)) for salt in ("one", "other"))
    assert sum(a != b for a, b in zip(one, other, strict=True)) > 45


def test_the_salt_of_a_workload_is_not_in_its_digest() -> None:
    assert workload.salted(Synthetic(), "3f9a01bc") == Synthetic(salt="3f9a01bc")
    for spec in (Synthetic(salt="none"), Synthetic(salt="word"), Prompts(prompts=["a"])):
        assert workload.salted(spec, "3f9a01bc") is spec
    assert workload.salt_of(Synthetic(salt="word")) == "word"
    assert workload.salt_of(Synthetic(salt="none")) is None
    assert workload.salt_of(Prompts(prompts=["a"])) is None
    assert len({workload.digest(Synthetic(salt=salt), 0) for salt in ("run", "none", "word", "other")}) == 1


def test_probe_requests_have_prompts_of_their_own() -> None:
    spec = Synthetic(salt="none")
    probing = workload.probe_requests(spec, 0, 3, "probe 3f9a01bc")
    assert [request.n_in for request in probing] == [spec.input] * 3
    assert not {str(r.payload).split(" ")[0] for r in probing} & {str(t).split(" ")[0] for t in texts(spec, 3)}


@pytest.mark.parametrize(("given", "used"), [(["a"], ["a", "a", "a"]), (list("abcde"), ["c", "d", "e"])])
def test_probe_requests_are_the_last_of_a_list(given: list[str], used: list[str]) -> None:
    spec: Data = Prompts(prompts=given)
    assert [request.payload for request in workload.probe_requests(spec, 0, 3, "word")] == used


def test_probe_requests_of_a_mix_are_not_those_of_the_run() -> None:
    classes = [TrafficClass("made", Synthetic(input=20)), TrafficClass("listed", Prompts(prompts=list("abcdefgh")))]
    spec = workload.salted(Mix(classes), "3f9a01bc")
    probing = workload.probe_requests(spec, 0, 4, "probe 3f9a01bc")
    assert {request.class_ for request in probing} == {0, 1}
    run = {str(request.payload) for request in workload.build(spec, 0, range(4))}
    assert not run & {str(request.payload) for request in probing}


def test_probe_requests_of_a_trace_with_prompts_are_its_last(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,prompt,output\n" + "".join(f"{n},prompt {n},5\n" for n in range(9)))
    probing = workload.probe_requests(Trace(path=str(path)), 0, 3, "probe 3f9a01bc")
    assert [request.payload for request in probing] == ["prompt 6", "prompt 7", "prompt 8"]
