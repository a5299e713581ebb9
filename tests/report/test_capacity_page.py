"""The reports of a capacity search: the HTML page, Markdown, JUnit XML, and the way back from capacity.json."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import made_capacity as made
import msgspec
import pytest
from command import assert_one_line, cli
from html_runs import Page

from inferometer.capacity_search.result import Capacity, as_json, from_json
from inferometer.capacity_search.trials import Bracket
from inferometer.conduct.capacity import Options
from inferometer.records import Manifest
from inferometer.report import capacity_export
from inferometer.report.capacity_export import CapacityReport
from inferometer.report.html import capacity_page


def page(found: Capacity) -> Page:
    return Page(capacity_page.encode(found, made.MANIFEST))


def test_the_answer_comes_first_and_the_explanation_last() -> None:
    found = page(made.text())
    assert found.ids("section") == ["answer", "search", "load", "confirmation", "run", "environment", "reading"]
    text = " ".join(found.text.split())
    assert "Holds at least 18 requests/s (about 367 people), probably about 20.3 (at most 22)" in text
    assert "Beyond that, the time to first token grows first." in text
    assert "limited by TTFT p90" in text and "shown with 95 % confidence, confirmed by a fresh run" in text
    assert "interactive" in text and "MLPerf" in text and "think time 20 s" in text


def test_an_end_that_no_probe_showed_says_so() -> None:
    found = page(made.estimated())
    assert "by the curve of the closed loops; no probe showed it" in found.text and "13 by the curve" in str(
        found.charts
    )
    assert "by the curve" not in page(made.text()).text.replace("at first by the curve", "")


def test_a_server_that_nothing_limits_has_no_level_that_fails() -> None:
    assert "fails – no level failed" in " ".join(page(made.unlimited()).text.split())


def test_closed_loops_and_probes_are_one_picture() -> None:
    chart = page(made.text()).chart("TTFT p90 against the load")
    series = {one["name"]: one for one in chart["series"]}
    assert (series["closed loops"]["x"], series["closed loops"]["y"]) == ([10, 21, 22.5], [200, 200, 1100])
    assert [mark["label"] for mark in chart["marks"]] == ["4 in flight", "16 in flight", "64 in flight"]
    assert series["holds"]["x"] == [16, 18, 18] and series["holds"]["hollow"] == [False] * 3
    assert series["fails"]["y"] == [924, 500]  # the first was overloaded: its measured p90 stands in for a value
    assert series["undecided"]["hollow"] == [True]
    assert chart["bands"] == [{"from": 18, "to": 22, "label": ""}] and chart["hlines"][0]["at"] == 450
    assert [line["label"] for line in chart["vlines"]] == ["holds 18", "fails 22"]


def test_a_picture_by_users_has_closed_loops_at_the_users_that_keep_the_server_as_busy() -> None:
    chart = page(made.text(by="users")).chart("TTFT p90 against the load")
    assert chart["series"][0]["x"] == [4 + 10 * 20, 16 + 21 * 20, 64 + 22.5 * 20]


def test_the_search_is_drawn_in_order_with_the_interval_closing_in() -> None:
    chart = page(made.text()).chart("How the search closed in")
    series = {one["name"]: one for one in chart["series"]}
    assert series["closed loop"]["y"][:4] == [10, 21, 22.5, None]
    assert series["fails"]["y"][3:] == [24, None, None, 22, None, None]
    band = series["interval so far"]
    assert (band["lo"][0], band["hi"][0]) == (5, 40) and (band["lo"][-1], band["hi"][-1]) == (18, 22)
    assert band["x"][0] == 6 and band["x"] == sorted(band["x"])


def test_the_table_of_probes_has_evidence_and_the_interval_after_each() -> None:
    text = " ".join(page(made.text()).text.split())
    assert "8 narrow down 20 ? close ttft.p90: 9 of 100 too slow 20.00 15 s 18 to 22" in text
    assert "1 closed loop 4 in flight ✓ within ttft.p90: 0 of 100 too slow 10.00 4 s 5 to 40" in text


def test_the_charts_against_the_load_show_the_limits_and_the_ends() -> None:
    found = page(made.text())
    latency = found.chart("TTFT against requests/s")
    assert [line["at"] for line in latency["hlines"]] == [450]
    assert [line["label"] for line in latency["vlines"]] == ["holds 18", "fails 22"]
    (curve,) = found.chart("Served requests/s against requests in flight")["series"]
    assert (curve["x"], curve["y"], curve["hollow"]) == ([4, 16, 64], [10, 21, 22.5], [False, False, True])


def test_a_tensor_model_has_queue_and_compute_and_no_tokens() -> None:
    found = page(made.tensors())
    titles = " ".join(chart["title"] for chart in found.charts.values())
    assert "queue against" in titles and "compute against" in titles and "inferences/s" in titles
    assert "token" not in titles and "TTFT" not in titles and "people" not in found.text


ENDS = (
    made.text(), made.likely(), made.estimated(), made.unlimited(), made.too_slow(), made.nothing(), made.text(by="users"),
    made.text(by="concurrency"), made.text("chat: ttft.p90 < 450ms"), made.text("goodput(ttft < 450ms) > 90%"),
    made.text(probes=made.text().probes[:1], bracket=Bracket(5.0, 40.0, 19.0, low_basis="estimated", high_basis="estimated")),
)  # fmt: skip


@pytest.mark.parametrize("found", ENDS)
def test_no_end_of_a_search_gives_a_nan_or_none(found: Capacity) -> None:
    for text in (page(found).text, capacity_export.summary(found), capacity_export.suite(found).decode()):
        assert not {"nan", "none", "inf", "null"} & set(text.lower().split())


def test_text_from_servers_is_escaped() -> None:
    found = page(made.text(model=made.HOSTILE, url=made.HOSTILE, ended_by=made.HOSTILE))
    assert [tag for tag, _ in found.tags if tag == "script"] == ["script", "script"]


def test_markdown_has_the_answer_and_the_probes() -> None:
    text = capacity_export.summary(made.text(at_least=15.0))
    assert "**Holds at least 18 requests/s (about 367 people), probably about 20.3 (at most 22); beyond that" in text
    assert "✅ 15 requests/s, which must hold: holds." in text
    assert "| 64 | 22.50 | ❌ beyond | ttft.p90: 90 of 100 too slow | 4 s |" in text
    assert "| 24 | ❌ overloaded | ttft.p90: 72 of 100 too slow; 3 failed | 7 s | narrow down |" in text
    assert "| 18 | ✅ likely |" in capacity_export.summary(made.likely())


@pytest.mark.parametrize(
    ("at_least", "outcome", "element"),
    [(None, "met", None), (18.0, "met", None), (20.0, "undecided", "skipped"), (22.0, "missed", "failure")],
)
def test_the_level_that_must_hold(at_least: float | None, outcome: str, element: str | None) -> None:
    found = made.text(at_least=at_least)
    assert found.outcome == outcome
    first, second = ET.fromstring(capacity_export.suite(found)).iter("testcase")
    assert first.attrib["classname"] == "capacity" and (element is None or first.find(element) is not None)
    assert second.attrib["name"] == "ttft.p90 < 450ms" and second.find("failure") is None
    assert "at 18 requests/s" in str(second.findtext("system-out"))


def test_a_search_without_a_level_that_holds_fails_its_objective() -> None:
    first, second = ET.fromstring(capacity_export.suite(made.too_slow())).iter("testcase")
    assert first.find("failure") is not None and second.find("failure") is not None
    assert "one request at a time" in ET.tostring(first, encoding="unicode")


def test_the_objectives_of_a_level_that_holds_are_met_whatever_single_tests_say() -> None:
    last = made.text().probes[-1]
    result = msgspec.structs.replace(last.slos[0], status="undecided")
    probes = (*made.text().probes[:-1], msgspec.structs.replace(last, slos=(result,)))
    found = made.text(probes=probes)
    assert "ttft.p90 < 450ms ✓ 220 ms" in " ".join(page(found).text.split())
    assert ET.fromstring(capacity_export.suite(found)).findall(".//skipped") == []


def test_the_answer_comes_back_from_json() -> None:
    for found in (made.text("chat: ttft.p90 < 450ms", at_least=3.0), made.tensors(by="users", strict=True), *ENDS):
        stored = json.loads(json.dumps(as_json(found, "words", made.MANIFEST)))
        assert from_json(stored) == (found, made.MANIFEST)


def test_report_shows_a_search_again(tmp_path: Path) -> None:
    capacity_export.save(CapacityReport(made.text(folder=str(tmp_path), at_least=20.0), made.MANIFEST))
    result = cli("report", tmp_path, "--html", tmp_path / "out.html", "--junit", tmp_path / "out.xml")
    assert result.status == 1 and "holds at least 18 requests/s" in " ".join(result.out.split())
    assert "How the search closed in" in (tmp_path / "out.html").read_text()
    assert_one_line(cli("report", tmp_path, "--csv", "-"), "search for the capacity", "the folder of one run")
    (tmp_path / "capacity.json").write_text('{"schema": 1, "capacity": {}}')
    assert_one_line(cli("report", tmp_path), "its layout has version 1", "inferometer capacity")
    (tmp_path / "capacity.json").write_text('{"capacity": {}}')
    assert_one_line(cli("report", tmp_path), "capacity.json", "inferometer capacity")


@pytest.mark.parametrize(
    ("found", "arguments", "status"),
    [
        (made.text(), (), 0),
        (made.text(), ("--strict", "--at-least", "18"), 0),
        (made.text(), ("--at-least", "20"), 1),
        (made.likely(), ("--at-least", "18"), 0),
        (made.likely(), ("--at-least", "18", "--strict"), 1),
        (made.likely(), ("--strict",), 1),
        (made.estimated(), (), 1),
        (made.too_slow(), (), 1),
    ],
)
def test_the_exit_status(
    found: Capacity, arguments: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(config: object, options: Options, view: object) -> tuple[Capacity, Manifest]:
        return msgspec.structs.replace(found, folder=str(tmp_path), at_least=options.at_least), made.MANIFEST

    monkeypatch.setattr("inferometer.conduct.capacity.find", find)
    monkeypatch.setattr("inferometer.cli.capacity.finish", lambda folder, status, quiet: status)
    assert cli("capacity", "http://127.0.0.1:9", "-q", *arguments).status == status
    assert cli("report", tmp_path).status == status
    is_sure = found.bracket.low_basis == "shown"
    assert cli("report", tmp_path, "--strict").status == (status if is_sure else 1)
