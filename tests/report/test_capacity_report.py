"""The answer in words, for what a search may end with."""

import msgspec
import pytest

from inferometer.capacity_search.result import Capacity, Probe, as_json
from inferometer.capacity_search.search import Bracket
from inferometer.report.capacity import render, words

PROBE = Probe(
    level=3.9, purpose="confirm", status="holds", seconds=30.0, requests=110, throughput=3.9, mean_e2e=5.6, slos=()
)
FOUND = Capacity(
    by="rate",
    bracket=Bracket(3.9, 4.5, 4.2, confirmed=True),
    limited_by="ttft.p90",
    probes=(PROBE,),
    slos=("ttft.p90 < 2s",),
    presets=("chat",),
    percentile="p90",
    budget=120.0,
    seconds=101.0,
    think=20.0,
    url="http://127.0.0.1:8000",
    model="m",
    folder="runs/x",
)


def changed(**changes: object) -> Capacity:
    return msgspec.structs.replace(FOUND, **changes)


def test_the_answer_is_a_sentence_for_anyone() -> None:
    assert words(FOUND) == (
        "holds 4.2 requests/s (3.9 to 4.5), about 99 people chatting (one message every 25.6 s each, of which they think 20 s); "
        "beyond that, the time to first token grows first"
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (changed(bracket=Bracket(None, 4.5, None)), "no level was shown to hold; 4.5 requests/s is too much"),
        (changed(bracket=Bracket(3.9, None, None), limited_by=None), "holds at least 3.9 requests/s"),
        (changed(bracket=Bracket(None, None, None), limited_by=None), "before any level was shown"),
        (changed(by="users"), "holds 4.2 users (3.9 to 4.5); beyond"),
        (changed(has_text=False, batch=8, limited_by="e2e.p90"), "31.2 inferences/s; beyond that, the response time"),
        (changed(limited_by="failure_rate"), "the share of failed requests grows first"),
    ],
)
def test_words_for_other_ends(found: Capacity, text: str) -> None:
    assert text in words(found)
    assert "nan" not in render(found).lower() and "None" not in render(found)


def test_the_report_says_what_it_is_based_on() -> None:
    text = render(changed(interrupted=True, bracket=Bracket(3.9, 9.0, 5.0)))
    for part in ("judged at p90", "interrupted", "not confirmed", "--percentile p99"):
        assert part in " ".join(text.split())
    assert "raise --budget" in " ".join(render(changed(bracket=Bracket(3.9, 9.0, 5.0))).split())


def test_json_has_the_names_that_others_rely_on() -> None:
    answer = as_json(FOUND, words(FOUND))["capacity"]
    assert answer["rate"] == {"low": 3.9, "high": 4.5, "estimate": 4.2}
    assert answer["limited_by"] == "ttft.p90"
    assert answer["probes"][0]["level"] == 3.9
    assert answer["confirmed"] is True
    assert answer["people"] == 99
    assert as_json(changed(by="users"), "")["capacity"]["users"]["low"] == 3.9
