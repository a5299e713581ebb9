"""The reports of a capacity search: the HTML page, Markdown, JUnit XML, and the way back from capacity.json."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import made_capacity as made
import pytest
from command import assert_one_line, cli
from html_runs import Page

from inferometer.capacity_search.result import Capacity, as_json, from_json
from inferometer.capacity_search.search import Bracket
from inferometer.report import capacity_export
from inferometer.report.capacity_output import save
from inferometer.report.html import capacity_page


def page(found: Capacity) -> Page:
    return Page(capacity_page.encode(found, made.MANIFEST))


def test_the_answer_comes_first_and_the_explanation_last() -> None:
    found = page(made.text())
    assert found.ids("section") == ["answer", "search", "load", "confirmation", "run", "environment", "reading"]
    text = " ".join(found.text.split())
    assert "Holds 20.3 requests/s (18 to 22) About 367 people chatting" in text
    assert "the time to first token grows first" in text
    assert "limited by TTFT p90" in text and "confirmed by a fresh run" in text
    assert "interactive" in text and "MLPerf" in text and "think time 20 s" in text


def test_the_search_is_drawn_in_order_with_the_interval_closing_in() -> None:
    chart = page(made.text()).chart("How the search closed in")
    series = {one["name"]: one for one in chart["series"]}
    assert series["fails"]["y"] == [None, 27, None, None, 22, None, None]
    assert series["holds"]["ex"][2] == [13, 24]
    band = series["interval so far"]
    assert (band["lo"][0], band["hi"][0]) == (12, 27) and (band["lo"][-1], band["hi"][-1]) == (18, 22)
    assert all(low <= estimate <= high for low, estimate, high in zip(band["lo"], band["y"], band["hi"], strict=True))


def test_the_charts_against_the_load_show_the_limits_and_the_ends() -> None:
    found = page(made.text())
    latency = found.chart("TTFT against requests/s")
    assert [line["at"] for line in latency["hlines"]] == [450]
    assert [line["label"] for line in latency["vlines"]] == ["holds 18", "fails 22"]
    (violations,) = found.chart("violate an objective")["series"]
    assert violations["x"] == [8, 12, 18, 18, 20, 22, 27] and violations["y"][-1] == 0.724
    assert found.chart("Completed requests/s")["series"][1]["y"][-1] == 20


def test_a_tensor_model_has_queue_and_compute_and_no_tokens() -> None:
    found = page(made.tensors())
    titles = " ".join(chart["title"] for chart in found.charts.values())
    assert "queue against" in titles and "compute against" in titles and "inferences/s" in titles
    assert "token" not in titles and "TTFT" not in titles and "people" not in found.text


@pytest.mark.parametrize(
    "found",
    [
        made.nothing(),
        made.text(bracket=Bracket(None, 27.0, None)),
        made.text(bracket=Bracket(18.0, None, None), limited_by=None),
        made.text(by="users"),
        made.text(probes=tuple(made.text().probes[:2]), bracket=Bracket(None, 27.0, None)),
        made.text("chat: ttft.p90 < 450ms"),
    ],
)
def test_no_end_of_a_search_gives_a_nan_or_none(found: Capacity) -> None:
    for text in (page(found).text, capacity_export.summary(found), capacity_export.suite(found).decode()):
        assert not {"nan", "none", "inf", "null"} & set(text.lower().split())


def test_text_from_servers_is_escaped() -> None:
    found = page(made.text(model=made.HOSTILE, url=made.HOSTILE, ended_by=made.HOSTILE))
    assert [tag for tag, _ in found.tags if tag == "script"] == ["script", "script"]


def test_markdown_has_the_answer_and_the_probes() -> None:
    text = capacity_export.summary(made.text(at_least=15.0))
    assert "**Holds 20.3 requests/s (18 to 22), about 367 people chatting" in text
    assert "✅ 15 requests/s, which must hold, is shown to hold." in text
    assert text.count("\n| ") == 2 + 7 and "| 27 | ❌ fails | ramp | 100 |" in text


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
    found = made.text(bracket=Bracket(None, 22.0, None), probes=made.text().probes[4:5])
    first, second = ET.fromstring(capacity_export.suite(found)).iter("testcase")
    assert first.find("failure") is not None and second.find("failure") is not None


def test_the_answer_comes_back_from_json() -> None:
    for found in (made.text("chat: ttft.p90 < 450ms", at_least=3.0), made.tensors(by="users"), made.nothing()):
        stored = json.loads(json.dumps(as_json(found, "words", made.MANIFEST)))
        assert from_json(stored) == (found, made.MANIFEST)


def test_report_shows_a_search_again(tmp_path: Path) -> None:
    save(made.text(folder=str(tmp_path), at_least=20.0), made.MANIFEST)
    result = cli("report", tmp_path, "--html", tmp_path / "out.html", "--junit", tmp_path / "out.xml")
    assert result.status == 1 and "holds 20.3 requests/s" in " ".join(result.out.split())
    assert "How the search closed in" in (tmp_path / "out.html").read_text()
    assert_one_line(cli("report", tmp_path, "--csv", "-"), "search for the capacity", "the folder of one run")
    (tmp_path / "capacity.json").write_text('{"capacity": {}}')
    assert_one_line(cli("report", tmp_path), "capacity.json", "inferometer capacity")
