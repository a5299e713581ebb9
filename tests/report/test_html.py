"""The HTML report: its sections, its charts' data, and that it is safe, small and always the same."""

import re
from pathlib import Path

import html_runs
import html_sweeps
import msgspec
import numpy as np
import pytest
import server_series
import synthetic_run as made
import test_report
from click.testing import CliRunner
from html_runs import HOSTILE, Page, encoded, page
from hypothesis import given
from hypothesis import strategies as st

from inferometer import store
from inferometer.analysis.knee import Knee
from inferometer.analysis.summary import summarise
from inferometer.cli.report import command
from inferometer.errors import UserError
from inferometer.records import Chunks, Failure, StagePlan
from inferometer.report import formatting
from inferometer.report.html import gap_histogram, timeline
from inferometer.report.html import page as page_of
from inferometer.report.html.latency import LEVELS, MILLION
from inferometer.report.html.page import sentence


def test_the_verdict_comes_first_and_the_definitions_last() -> None:
    found = page(html_runs.staged())
    sections = ["verdict", "run", "latency", "time", "heatmap", "curve", "goodput", "slowest", "failures"]
    assert found.ids("section") == [*sections, "tokens", "classes", "client", "environment", "definitions"]
    links = [attrs["href"] for tag, attrs in found.tags if tag == "a"]
    assert links == [f"#{name}" for name in found.ids("section")]


def test_the_page_says_the_verdict_the_objectives_and_what_was_run() -> None:
    text = " ".join(page(html_runs.plain()).text.split())
    assert " 3 objectives: " in text
    assert "ttft.p90 < 60ms ✓" in text and "itl.p99 < 11ms ✗" in text
    assert "my-model at http://127.0.0.1:8000" in text and "closed loop, 8 in flight, 600 requests" in text


def test_an_invalid_run_says_why() -> None:
    rows, chunks = made.closed_rows()
    made.fail(rows, slice(0, 100))
    text = " ".join(page(made.run(rows, chunks, failures=(Failure("http_503", "busy"),))).text.split())
    assert " INVALID " in text and " failures 100 of 600 requests " in text.lower() and "http_503 100 " in text


def test_the_page_warns_of_what_the_terminal_warns_of() -> None:
    run = test_report.beyond()
    said = " ".join(page(run).text.split())
    assert (
        "the server counted" in said.lower() and "more requests: from other clients, or ones that failed here." in said
    )
    assert "ms more than the client saw" in said
    errors = {"disk": "no such device"}
    broken = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, observer_errors=errors))
    assert "Observer disk: no such device." in page(broken).text
    marked = page(html_runs.staged()).text
    assert "* too few independent values" in marked


def test_the_page_has_the_time_to_first_token_by_turn() -> None:
    text = " ".join(page(test_report.with_sessions()).text.split())
    assert "ttft, turn 1, ms" in text and "sessions ok failed cut off turns" in text


def test_an_empty_run_has_a_page_without_charts() -> None:
    found = page(html_runs.empty())
    assert not found.charts and "latency" not in found.ids("section") and "nan" not in found.text.lower().split()


def test_nothing_is_loaded_and_no_other_script_may_run() -> None:
    found = page(html_runs.plain())
    assert not [tag for tag, _ in found.tags if tag in ("img", "link", "iframe", "object")]
    assert not [attrs for _, attrs in found.tags if attrs.get("src") or not str(attrs.get("href", "#")).startswith("#")]
    (policy,) = (str(attrs["content"]) for _, attrs in found.tags if attrs.get("http-equiv"))
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy


def test_text_from_servers_and_configs_is_escaped() -> None:
    found = page(html_runs.staged(name=HOSTILE))
    assert [tag for tag, _ in found.tags if tag == "script"] == ["script", "script"]
    assert not [tag for tag, _ in found.tags if tag == "img"]
    assert "<img src=x onerror=" in found.text  # as text
    assert any(HOSTILE[:20] in each["name"] for chart in found.charts.values() for each in chart.get("series", ()))


def test_the_same_run_gives_the_same_bytes() -> None:
    assert encoded(html_runs.staged()) == encoded(html_runs.staged())


def test_tensor_runs_have_queue_and_compute_and_no_token_charts() -> None:
    found = page(html_runs.tensors())
    assert {"heatmap", "tokens"}.isdisjoint(found.ids("section")) and "breakdown" in found.ids("section")
    titles = [chart["title"] for chart in found.charts.values()]
    assert "Queue and compute." in titles and not [title for title in titles if "TTFT" in title or "ITL" in title]
    assert "TTFT" not in found.text and "tokens/s" not in found.text


def test_a_hundred_thousand_requests_fit_into_3_mb() -> None:
    rows, chunks = made.closed_rows(5_000, users=64)
    copies = 20
    length = int(rows["done"].max()) + made.MS
    many = np.tile(rows, copies)
    moved = np.repeat(np.arange(copies) * length, len(rows))
    for name in ("intended", "sent", "first_byte", "first_token", "first_content", "last_token", "done"):
        many[name] += moved
    many["id"] = np.arange(len(many))
    many["chunk_start"] = np.arange(len(many)) * 10
    arrivals = np.tile(chunks.arrival, copies) + np.repeat(np.arange(copies) * length, len(chunks.arrival))
    run = made.run(many, Chunks(arrivals, np.tile(chunks.tokens, copies)))
    source = encoded(run)
    assert len(run.records.rows) == 100_000 and len(source) < 1_000_000
    assert max(len(each["y"]) for each in Page(source).chart("Requests per second")["series"]) <= 600


# --- the charts' data ------------------------------------------------------------------------------------------------


def test_rates_add_up_to_the_requests() -> None:
    run = html_runs.plain()
    chart = page(run).chart("Requests per second")
    width = chart["x"]["values"]["step"]
    assert [sum(each["y"]) * width for each in chart["series"]] == pytest.approx([600, 600], rel=1e-3)


def test_in_flight_is_the_number_between_send_and_end() -> None:
    rows = made.blank(3)
    rows["sent"] = np.array([0, 1, 1]) * made.SECOND
    rows["done"] = np.array([2, 2, 4]) * made.SECOND
    times = gap_histogram.TimeBins(0, made.SECOND, 4)
    mean, least, most = timeline.in_flight(made.run(rows), times)
    assert (mean.tolist(), least.tolist(), most.tolist()) == ([1, 3, 1, 1], [0, 1, 1, 0], [1, 3, 3, 1])


def test_server_gauges_are_drawn_with_the_requests_in_flight() -> None:
    names = [each["name"] for each in page(html_runs.plain()).chart("Requests in flight")["series"]]
    assert names == ["in flight", "running (server)", "waiting (server)"]


def test_the_distribution_has_the_percentiles_of_the_table() -> None:
    run = html_runs.plain()
    found = summarise(run).metrics
    levels = LEVELS.tolist()
    for name, title, tolerance in (("ttft", "distribution of TTFT", 1e-4), ("itl", "distribution of ITL", 0.016)):
        (line,) = page(run).chart(title)["series"]
        for level, column in ((500_000, "p50"), (900_000, "p90"), (990_000, "p99")):
            assert line["x"][levels.index(level)] == pytest.approx(1e3 * found[name].value(column), rel=tolerance)
        assert line["x"] == sorted(line["x"])
    assert levels[-1] == MILLION


def test_failed_requests_that_count_as_infinitely_slow_end_the_curve_early() -> None:
    rows, chunks = made.closed_rows()
    made.fail(rows, slice(0, 60))
    config = made.manifest().config | {"measure": {"failures_as_inf": True}}
    (line,) = page(made.run(rows, chunks, failures=(Failure("http_503", ""),), config=config)).chart("TTFT")["series"]
    known = [value for value in line["x"] if value is not None]
    assert LEVELS[len(known) - 1] == pytest.approx(900_000, rel=0.01) and line["x"][-1] is None


@given(st.integers(1, 2**40))
def test_gaps_lie_between_the_edges_of_their_bins(gap: int) -> None:
    index = int(gap_histogram.bin_of(np.array([gap]))[0])
    low, high = gap_histogram.edge(index), gap_histogram.edge(index + 1)
    assert low * 1e9 <= gap * (1 + 1e-12) and gap < high * 1e9 * (1 + 1e-12) and high <= low * (1 + 1 / 64 + 1e-9)


def test_every_gap_is_in_the_heatmap_however_the_chunks_are_read() -> None:
    run = html_runs.plain()
    chart = page(run).chart("Gaps between")
    assert sum(chart["counts"]) == 600 * 9 and chart["columns"] <= 120 and chart["rows"] <= 40
    whole = list(run.chunks())
    split = msgspec.structs.replace(run, chunks=lambda: (p for w in whole for p in made.pieces(w, 777)))
    assert encoded(split) == encoded(run)


def test_a_run_page_says_why_the_tail_is_slow_and_names_things_in_words() -> None:
    run = html_runs.plain()
    clock, host = run.manifest.clock | {"step_ns": 21}, run.manifest.host | {"has_server": True}
    run = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, clock=clock, host=host))
    found = page(run)
    words = " ".join(found.text.split())
    assert summarise(run).tail.metrics["e2e"].sentence in words  # type: ignore[union-attr]
    first = page(run).chart("slowest requests")["rows"][0]["label"]
    assert re.fullmatch(r"64 → 10 tokens · [0-9.]+ ms · request [0-9]+", first)
    assert "step 21 ns" in words and "has server: yes" in words and "step_ns" not in words
    compared = words[words.index("client and server") :]
    assert re.search(
        r"ttft mean, ms [0-9.]+ [0-9.]+ -?[0-9.]+ -?[0-9.]+% ttft p50, ms [0-9.]+ [0-9.]+ +[a-z]", compared
    )


@pytest.mark.parametrize("use", [0.0, 0.25])
def test_a_kv_cache_that_was_not_used_has_no_chart(use: float) -> None:
    run = html_runs.plain()
    series = server_series.vllm(run.records.rows, server_series.scrapes_of(run.records.rows), kv_cache_usage_perc=use)
    charts = page(server_series.with_series(run, series)).charts.values()
    assert any("KV cache" in chart["title"] for chart in charts) == (use > 0)


def test_a_word_in_backticks_is_code() -> None:
    section = page_of.Section("answer", "Answer", [page_of.note("use `repeat: 3` <or> more")])
    source = page_of.render(page_of.Page("t", "", [section], "", "1"))
    assert b"use <code>repeat: 3</code> &lt;or&gt; more" in source


def test_the_slowest_requests_are_the_slowest() -> None:
    run = html_runs.plain()
    rows = run.records.rows
    took = (rows["done"] - rows["sent"]) / 1e9
    chart = page(run).chart("slowest requests")
    assert chart["x"]["unit"] == "ms"
    assert [each["end"] for each in chart["rows"]] == pytest.approx(1e3 * np.sort(took)[::-1][:10], rel=1e-4)
    assert all(len(each["tokens"]) == 10 for each in chart["rows"])


def test_objectives_are_drawn_as_lines() -> None:
    found = page(html_runs.staged())
    assert [line["at"] for line in found.chart("TTFT against")["hlines"]] == [60]
    assert [line["at"] for line in found.chart("distribution of ITL")["vlines"]] == [11]


def test_the_knee_is_marked_in_the_load_curve_and_in_a_card() -> None:
    run = html_sweeps.staged(2.0, "one")
    knee = Knee(settings={}, by="rate", level=60.0, throughput=59.5, reason="latency grows")
    found = Page(encoded(run, msgspec.structs.replace(summarise(run), knee=knee, no_knee=None)))
    chart = found.chart("TTFT against completed requests/s")
    (mark,) = chart["marks"]
    median = chart["series"][0]
    assert (mark["x"], mark["y"], mark["label"]) == (median["x"][1], median["y"][1], "knee")
    text = " ".join(found.text.split())
    assert "knee 60 requests/s above it" in text and "One point per stage. The knee is at 60 requests/s" in text
    assert "marks" not in Page(encoded(run, msgspec.structs.replace(summarise(run), knee=None))).chart("TTFT against")


def test_lengths_that_are_the_same_in_all_stages_have_one_row() -> None:
    text = " ".join(page(html_sweeps.staged(2.0, "one")).text.split())
    assert text.count(" output 10 10 ") == 1 and "output, 20/s" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the server queued", "The server queued."),
        ("p99 of ttft is high.", "p99 of ttft is high."),
        ("ttft: too slow", "ttft: too slow."),
        ("", ""),
    ],
)
def test_sentences_have_a_capital_and_a_full_stop(text: str, expected: str) -> None:
    assert sentence(text) == expected


@pytest.mark.slow
def test_many_stages_are_grouped_by_class_and_coloured_by_their_order() -> None:
    rows, chunks = made.open_rows(20 * 60)
    rows["stage"], rows["class"] = rows["id"] // 60, rows["id"] % 2
    plan = tuple(
        StagePlan(type="constant", open=True, name=f"{number}/s", rate=100.0, duration=0.6) for number in range(1, 21)
    )
    config = made.manifest().config | {
        "slo": html_runs.SLOS,
        "data": {"type": "mix", "classes": [{"name": "chat"}, {"name": "code"}]},
    }
    found = page(made.run(rows, chunks, plan=plan, config=config, classes=("chat", "code")))
    lines = found.chart("distribution of TTFT")["series"]
    assert [line["ramp"] for line in lines] == sorted({line["ramp"] for line in lines}) and len(lines) == 20
    text = " ".join(found.text.split())
    assert "chat by stage code by stage" in text and "The load of the 20 stages" in text
    assert "1/s, 2/s, 3/s, 4/s, 5/s" not in text


def test_many_names_in_a_row_become_a_range() -> None:
    assert formatting.name_ranges("abcdefgh", [0, 2, 3, 4, 5, 6]) == "a, c to g"
    assert formatting.name_ranges("abcdefgh", [0, 1, 2, 3, 6]) == "a, b, c, d, g"


# --- --open ----------------------------------------------------------------------------------------------------------


def stored(folder: Path) -> Path:
    run = html_runs.plain()
    folder.mkdir()
    store.write(folder, run.manifest, run.records, run.chunks())
    return folder


def call(*arguments: object) -> None:
    result = CliRunner().invoke(command, [str(each) for each in arguments], standalone_mode=False)
    if result.exception:
        raise result.exception


def test_open_writes_the_page_into_the_folder_and_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    folder = stored(tmp_path / "run")
    call(folder, "--open")
    assert opened == [(folder / "report.html").resolve().as_uri()]
    assert (folder / "report.html").read_bytes().startswith(b"<!doctype html>")
    call(folder, "--open", "--html", tmp_path / "own.html")
    assert opened[1:] == [(tmp_path / "own.html").resolve().as_uri()]


def test_open_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--open needs a file"):
        call(stored(tmp_path / "run"), "--open", "--html", "-")
