"""The answer in words, for what a search may end with, and what the report says about each probe."""

import io
import re

import made_capacity as made
import msgspec
import pytest
from rich.console import Console

from inferometer.analysis.slo_expression import parse_all
from inferometer.capacity_search.objectives import Objectives
from inferometer.capacity_search.result import Capacity, Probe, as_json
from inferometer.capacity_search.trials import Bracket, Goal, Request, Trial
from inferometer.report.capacity import notes, required, verdict, words
from inferometer.report.capacity_report import render
from inferometer.report.capacity_view import SearchView

PEOPLE = "each thinks 20 s between messages"


def test_the_answer_is_a_sentence_for_anyone() -> None:
    assert words(made.text()) == (
        "holds at least 18 requests/s (about 367 people), probably about 20.3 (at most 22); beyond that, the time to first token grows first"
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            made.likely(),
            "likely holds 18 requests/s (about 367 people; 2 of 100 requests too slow; not confirmed), probably about 20.3 (at most 22); "
            "beyond that, the time to first token grows first",
        ),
        (
            made.estimated(),
            "probably holds about 19 requests/s (about 387 people), between 13 and 23 by the curve of the closed loops (no probe "
            "showed it); beyond that, the time to first token grows first",
        ),
        (
            made.text(bracket=Bracket(13.0, 22.0, 19.0, low_basis="estimated", high_basis="likely")),
            "probably holds about 19 requests/s (about 387 people), at least 13 by the curve of the closed loops (no probe showed it), "
            "likely at most 22; beyond that, the time to first token grows first",
        ),
        (
            made.text(bracket=Bracket(18.0, 24.0, 20.3, high_basis="estimated")),
            "holds at least 18 requests/s (about 367 people), probably about 20.3 (at most 24 by the curve of the closed loops; no probe "
            "showed it); beyond that, the time to first token grows first",
        ),
        (
            made.text(bracket=Bracket(18.0, 24.0, 18.0, high_basis="estimated")),
            "holds at least 18 requests/s (about 367 people), at most 24 (by the curve of the closed loops; no probe showed it); "
            "beyond that, the time to first token grows first",
        ),
        (
            made.text(bracket=Bracket(18.0, 22.0, 20.3, high_basis="likely")),
            "holds at least 18 requests/s (about 367 people), probably about 20.3 (likely at most 22); "
            "beyond that, the time to first token grows first",
        ),
        (made.unlimited(), "holds at least 18 requests/s (about 367 people); no level failed"),
        (made.too_slow(), "one request at a time already violates ttft.p90 < 50ms (it takes 70 ms)"),
        (
            made.too_slow("chat: ttft.p90 < 50ms"),
            "one request at a time already violates ttft.p90 < 50ms of chat (it takes 70 ms)",
        ),
        (
            made.text(
                "ttft.p90 < 250ms",
                by="users",
                bracket=Bracket(None, 1.0, None),
                probes=(msgspec.structs.replace(made.text("ttft.p90 < 250ms").probes[6], level=1.0),),
            ),
            "one user already violates ttft.p90 < 250ms (it takes 500 ms)",
        ),
        (made.nothing(), "the search ended before any level was shown to hold"),
        (
            made.text(by="users", bracket=Bracket(18.0, 19.0, 18.2)),
            f"holds at least 18 users ({PEOPLE}), at most 19; beyond that, the time to first token grows first",
        ),
        (
            made.text(by="concurrency"),
            "holds at least 18 requests in flight (about 917 people), probably about 20.3 (at most 22); "
            "beyond that, the time to first token grows first",
        ),
        (
            made.tensors(),
            "holds at least 18 requests/s (144 inferences/s), probably about 20.3 (at most 22); beyond that, the response time grows first",
        ),
        (
            made.tensors(batch=None, limited_by="failure_rate"),
            "holds at least 18 requests/s, probably about 20.3 (at most 22); beyond that, the share of failed requests grows first",
        ),
        (
            made.text(limited_by="chat: ttft.p90"),
            "holds at least 18 requests/s (about 367 people), probably about 20.3 (at most 22); "
            "beyond that, the time to first token of chat grows first",
        ),
        (
            made.text(limited_by="goodput(ttft"),
            "holds at least 18 requests/s (about 367 people), probably about 20.3 (at most 22); "
            "beyond that, fewer requests keep the limits",
        ),
    ],
)
def test_words_for_other_ends(found: Capacity, text: str) -> None:
    assert words(found) == text
    assert "nan" not in render(found).lower() and "None" not in render(found)


PROBE = made.text().probes[7]


def changed(share: float | None = 0.0, **changes: object) -> Probe:
    result = msgspec.structs.replace(PROBE.slos[0], violations=share)
    values: dict[str, object] = {"slos": (result,), "violations": {}} | changes
    return msgspec.structs.replace(PROBE, **values)


@pytest.mark.parametrize(
    ("probe", "sign", "word"),
    [
        (changed(), "?", "not proven"),
        (changed(requests=20), "?", "too short"),
        (changed(0.09), "?", "close"),
        (changed(is_warming=True), "?", "warming up"),
        (changed(is_growing=True), "?", "growing"),
        (msgspec.structs.replace(made.text().probes[6], is_warming=True), "?", "warming up"),
        (changed(None), "?", "not proven"),
        (made.text().probes[4], "✓", "holds"),
        (made.likely().at_low, "✓", "likely"),
        (made.text().probes[6], "✗", "fails"),
        (msgspec.structs.replace(made.text().probes[6], is_sure=False), "✗", "likely"),
        (made.text().probes[3], "✗", "overloaded"),
        (made.text().probes[0], "✓", "within"),
        (made.text().probes[2], "✗", "beyond"),
        (msgspec.structs.replace(made.text().probes[2], excess=None), "?", "too short"),
    ],
)
def test_a_verdict_is_a_word(probe: Probe, sign: str, word: str) -> None:
    assert verdict(probe)[:2] == (sign, word)


def test_the_report_has_the_curve_the_interval_and_the_evidence() -> None:
    lines = [" ".join(line.split()) for line in render(made.text()).splitlines()]
    assert "16 ████████████████▊ 21.00 ✓ within ttft.p90: 0 of 100 too slow 4 s" in lines
    assert any(line.startswith("15.1 ━━") and line.endswith("25.4 requests/s 18 to 22") for line in lines)
    assert "24 ✗ overloaded ttft.p90: 72 of 100 too slow; 3 failed 7 s narrow down" in lines
    assert "20 ? close ttft.p90: 9 of 100 too slow 15 s narrow down" in lines
    assert "each person sends a message every 20.4 s, and thinks for 20 s of it" in lines


@pytest.mark.parametrize(
    ("found", "note"),
    [
        (made.text(interrupted=True), "interrupted"),
        (made.text(ended_by="the server is gone"), "the search ended early, .* the server is gone"),
        (
            made.text(budget=480.0, asked_budget=120.0),
            "a response takes 400 ms, so the search takes up to 8m instead of 2m",
        ),
        (
            made.text(probes=(msgspec.structs.replace(made.text().probes[0], is_warming=True),)),
            "still warming up during a probe",
        ),
        (
            made.text(bracket=Bracket(18.0, 22.0, 20.0)),
            "^a larger --budget would confirm the lower end by a fresh run$",
        ),
        (made.text(bracket=Bracket(18.0, 30.0, 20.0, confirmed=True)), "^a larger --budget would narrow the interval$"),
        (msgspec.structs.replace(made.nothing(), interrupted=False), "no probe was long enough"),
        (made.text(bracket=Bracket(17.2, 22.0, 20.0)), "^18 held, but all probes together make less more likely"),
        (made.text(), "--percentile p99"),
        (made.text(has_sessions=True), "--by users"),
    ],
)
def test_notes(found: Capacity, note: str) -> None:
    assert any(re.search(note, text) for text in notes(found))


def test_what_likely_holds_passes_unless_it_is_strict() -> None:
    found = made.likely()
    strict = msgspec.structs.replace(found, strict=True)
    assert (found.outcome, strict.outcome) == ("met", "undecided")
    assert any("--strict" in note for note in notes(strict)) and not any("--strict" in note for note in notes(found))


def test_what_only_the_curve_estimates_does_not_pass() -> None:
    assert made.estimated().outcome == "undecided"
    assert msgspec.structs.replace(made.estimated(), at_least=30.0).outcome == "undecided"
    assert made.too_slow().outcome == "missed"


def test_a_request_that_was_not_seen_to_end_is_not_too_slow() -> None:
    unseen = [msgspec.structs.replace(one, excess=None) for one in made.too_slow().probes]
    found = msgspec.structs.replace(made.too_slow(), probes=tuple(unseen))
    assert words(found) == "the search ended before any level was shown to hold" and found.outcome == "undecided"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (made.text(at_least=18.0), "18 requests/s, which must hold: holds"),
        (msgspec.structs.replace(made.likely(), at_least=15.0), "15 requests/s, which must hold: likely holds"),
        (made.text(at_least=20.0), "20 requests/s, which must hold: is not shown to hold"),
        (made.text(at_least=25.0), "25 requests/s, which must hold: fails"),
        (msgspec.structs.replace(made.too_slow(), at_least=1.0), "1 requests/s, which must hold: fails"),
    ],
)
def test_the_level_that_must_hold_in_words(found: Capacity, text: str) -> None:
    assert required(found) == text


def test_json_has_the_names_that_others_rely_on() -> None:
    answer = as_json(made.text(), words(made.text()))["capacity"]
    assert answer["rate"] == {"low": 18.0, "high": 22.0, "estimate": 20.3}
    assert answer["basis"] == {"low": "shown", "high": "shown"}
    assert answer["limited_by"] == "ttft.p90" and answer["confirmed"] is True and answer["people"] == 367
    assert answer["probes"][0] | {"level": 4.0, "purpose": "explore"} == answer["probes"][0]
    assert as_json(made.text(by="users"), "")["capacity"]["users"]["low"] == 18.0


def shown(found: Capacity, is_terminal: bool, asked_budget: float | None = None) -> str:
    """What the view of this search prints, as words."""
    file = io.StringIO()
    view = SearchView(found.by, console=Console(file=file, force_terminal=is_terminal, width=100, no_color=True))
    view.planned(Goal(budget=480.0, unloaded=0.4), Objectives(parse_all(list(found.slos))), 31.0, asked_budget)
    trials: list[Trial] = []
    for one in found.probes:
        view.probing(Request(one.level, one.seconds, one.purpose), trials)
        view.probed(one, Bracket(one.low, one.high, None))
    view.over()
    return " ".join(file.getvalue().split())


def test_the_view_says_first_how_long_it_takes() -> None:
    assert "a response takes 31 s without load, so the search takes up to 8m first" in shown(made.text(), False)
    assert "a response takes 31 s, so the search takes up to 8m instead of 2m first" in shown(made.text(), False, 120.0)


def test_the_view_has_a_line_per_probe() -> None:
    text = shown(made.text(), False)
    assert "✓ 16 in flight, 21.00 requests/s: within (ttft.p90: 0 of 100 too slow; 4 s) -> 12 to 40" in text
    assert "? 20 requests/s: close (ttft.p90: 9 of 100 too slow; 15 s) -> 18 to 22" in text


def test_the_view_draws_the_curve_and_the_scale_in_a_terminal() -> None:
    text = shown(made.text(), True)
    assert "4 ████████ 10.00 ✓ within" in text and "confirm 18 requests/s" in text and "left of 8m" in text
    assert re.search("━✓━+●", re.sub("\x1b\\[[0-9;]*m", "", text))
