"""The charts of a report as files: their names, which are chosen, and that every kind is drawn."""

from pathlib import Path

import html_runs
import html_sweeps
import pytest
from click.testing import CliRunner

from inferometer import store
from inferometer.analysis.summary import summarise
from inferometer.cli.plot import command
from inferometer.errors import UserError
from inferometer.report import plot
from inferometer.report.html import run_page, sweep_page
from inferometer.report.html.page import Page, named_charts


def page(name: str) -> Page:
    run = getattr(html_runs, name)()
    return run_page.page(run, summarise(run))


def stored(folder: Path) -> str:
    run = html_runs.staged()
    folder.mkdir()
    store.write(folder, run.manifest, run.records, run.chunks())
    return str(folder)


def call(*arguments: object) -> str:
    result = CliRunner().invoke(command, [str(each) for each in arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.output


def test_charts_have_short_names_by_section_and_tab() -> None:
    names = list(named_charts(page("staged")))
    assert {"latency-ttft-all", "latency-e2e-s1", "time-requests-per-second", "heatmap", "slowest"} <= set(names)
    assert {"curve-ttft-requests", "curve-itl-output-tokens", "goodput"} <= set(names)
    assert len(names) == len(set(names)) == len(html_runs.Page(html_runs.encoded(html_runs.staged())).charts)


def test_list_prints_names_and_titles(tmp_path: Path) -> None:
    lines = call(stored(tmp_path / "run"), "--list", "--chart", "time-*").splitlines()
    assert lines[0].split("  ", 1)[0] == "time-requests-per-second" and lines[0].endswith("  Requests per second")
    assert all(line.startswith("time-") for line in lines)


def test_an_unknown_chart_names_the_nearest() -> None:
    with pytest.raises(UserError, match="there is no chart 'latency-tttf-all'") as error:
        plot.choose(page("staged"), ["latency-tttf-all"])
    assert "latency-ttft-all" in error.value.next_step


def test_a_run_without_requests_has_no_charts() -> None:
    with pytest.raises(UserError, match="there are no charts"):
        plot.choose(page("empty"), [])


def test_where_to_write_must_be_known() -> None:
    with pytest.raises(UserError, match="where to write"):
        plot.check_plotting(None)
    with pytest.raises(UserError, match=r"out\.pdf: charts are written as PNG or SVG"):
        plot.check_plotting("out.pdf")


def test_a_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs matplotlib") as error:
        plot.check_plotting("charts")
    assert error.value.next_step == "pip install 'inferometer[plot]'"


def test_several_charts_need_a_folder(tmp_path: Path) -> None:
    made = page("plain")
    with pytest.raises(UserError, match="charts do not fit into one file"):
        plot.write_charts(made, plot.choose(made, []), str(tmp_path / "one.png"), "png")


@pytest.mark.matplotlib
def test_the_charts_of_a_sweep_are_drawn_with_their_knees(tmp_path: Path) -> None:
    made = sweep_page.sweep_page(*html_sweeps.grid())
    chosen = plot.choose(made, ["curve-ttft-p99-requests", "throughput-*", "pareto"])
    files = plot.write_charts(made, chosen, str(tmp_path), "svg")
    assert "knee 60/s" in files[0].read_text() and len(files) == 5


@pytest.mark.slow
@pytest.mark.matplotlib
@pytest.mark.parametrize("name", ["staged", "tensors"])
def test_every_chart_is_drawn(name: str, tmp_path: Path) -> None:
    made = page(name)
    files = plot.write_charts(made, named_charts(made), str(tmp_path / "charts"), "svg")
    assert [file.stem for file in files] == list(named_charts(made))
    texts = [file.read_text() for file in files]
    assert all("<svg" in text and "at http://127.0.0.1:8000" in text for text in texts if name == "staged")


@pytest.mark.matplotlib
def test_a_chart_says_what_it_shows(tmp_path: Path) -> None:
    (path,) = call(stored(tmp_path / "run"), "--chart", "curve-ttft-requests", "-o", tmp_path / "a" / "one.svg").split()
    text = Path(path).read_text()
    for words in (
        "TTFT against completed requests/s",
        "ms (logarithmic)",
        "completed requests/s",
        "p99",
        "ttft.p90 &lt; 60ms",
    ):
        assert words in text


@pytest.mark.matplotlib
def test_the_same_chart_gives_the_same_bytes_and_dark_ones_differ(tmp_path: Path) -> None:
    made = page("plain")
    chosen = plot.choose(made, ["heatmap"])
    written = [
        plot.write_charts(made, chosen, str(tmp_path / f"{index}.png"), "png", is_dark)[0].read_bytes()
        for index, is_dark in enumerate((False, False, True))
    ]
    assert written[0].startswith(b"\x89PNG") and written[0] == written[1] != written[2]
