"""A comparison of engines in the terminal and in files: its bytes against golden files, and what the page says.

INFEROMETER_UPDATE_GOLDEN=1 writes the golden files again: read the diff.
"""

import csv
import io
import json
from pathlib import Path

import made_campaign
import msgspec
import pytest
from html_runs import HOSTILE, Page
from test_report import golden

from inferometer.analysis.engine_results import EngineResults, summarise_campaign
from inferometer.conduct.campaign_reading import open_campaign, read_record
from inferometer.conduct.kinds import kind_of
from inferometer.errors import UserError
from inferometer.report import engines_export, plot
from inferometer.report.engines import render
from inferometer.report.engines_export import ENGINES
from inferometer.report.html import engines_page
from inferometer.report.html.page import named_charts
from inferometer.report.json import encode
from inferometer.report.output import deliver
from inferometer.store.folder import CAMPAIGN


@pytest.fixture(scope="module")
def generators() -> EngineResults:
    return made_campaign.generators().results()


@pytest.fixture(scope="module")
def encoders() -> EngineResults:
    return summarise_campaign(made_campaign.encoders(), {})


@pytest.mark.golden
@pytest.mark.parametrize("name", ["generators", "encoders"])
def test_golden_files(name: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(name)
    golden(f"engines_{name}.txt", render(found, False, 100))
    golden(f"engines_{name}_80.txt", render(found, False, 80))
    golden(f"engines_{name}.md", engines_export.summary(found))


@pytest.mark.parametrize("width", [70, 80, 100])
def test_the_report_fits_its_width(generators: EngineResults, encoders: EngineResults, width: int) -> None:
    for found in (generators, encoders):
        lines = render(found, False, width).splitlines()
        assert max(map(len, lines)) <= width and not any("…" in line for line in lines)


def test_the_recommendation_comes_before_the_table(generators: EngineResults) -> None:
    text = render(generators, False, 100)
    assert text.index("For interactive use") < text.index("cannot be recommended: llamacpp") < text.index("ttft p95  ")


def test_throughput_and_scaling_stay_however_long_the_names_are() -> None:
    name = "transformers batched sort batch=16"
    found = made_campaign.Maker(1).measured(name, levels=(1, 4)).results()
    for width in (80, 100, 160):
        text = render(found, False, width)
        titles = next(line for line in text.splitlines() if line.startswith(" engine ")).split("  ")
        assert {"req/s", "scaling"} <= {title.strip() for title in titles}
        assert ("ttft p99" in text) == (width == 160)


def test_the_json_has_the_names_that_other_tools_rely_on(generators: EngineResults) -> None:
    tree = json.loads(encode(generators))
    assert [(each["name"], each["status"]) for each in tree["engines"]][-2:] == [
        ("llamacpp", "ok"),
        ("sglang", "failed"),
    ]
    level = tree["engines"][0]["levels"][2]
    assert (level["by"], level["level"], level["valid"]) == ("concurrency", 16, True)
    assert level["throughput"]["output_tokens"]["value"] > 0 and level["ttft"]["p99"] is not None
    assert tree["recommendation"][0]["use"] == "interactive" and tree["recommendation"][0]["engine"] == "vllm"
    assert (
        tree["engines"][1]["agreement"]["verdict"] == "reference"
        and tree["parity"]
        and tree["device"]
        and tree["model"]
    )


def test_csv_has_a_row_per_engine_and_level(generators: EngineResults, encoders: EngineResults) -> None:
    rows = list(csv.DictReader(io.StringIO(engines_export.csv_rows(generators).decode())))
    assert len(rows) == 10 and rows[4]["ttft_p50_s"] == "" and float(rows[4]["e2e_p50_s"]) > 0
    assert len(list(csv.DictReader(io.StringIO(engines_export.csv_rows(encoders).decode())))) == 12


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_answer_comes_first_and_the_definitions_last(generators: EngineResults) -> None:
    ids = Page(engines_page.encode(generators)).ids("section")
    assert ids == [
        "answer", "summary", "throughput", "latency", "pareto", "resources", "startup", "outputs", "parity", "failures",
        "run", "definitions",
    ]  # fmt: skip


def test_the_page_says_why_engines_are_left_out(generators: EngineResults) -> None:
    text = " ".join(Page(engines_page.encode(generators)).text.split())
    assert "vllm holds 22.4 x the load of transformers serial" in text
    assert "Cannot be recommended" in text and "RuntimeError: <boom>" in text
    assert "0 of 4 outputs and 0% of all tokens are those of transformers serial" in text
    assert "dtype differs (less precision" in text


def test_charts_have_a_line_per_engine_with_figures(generators: EngineResults) -> None:
    found = Page(engines_page.encode(generators))
    names = ["vllm", "transformers serial", "transformers batched", "llamacpp"]
    tokens = found.chart("Output tokens/s against the load")
    assert [line["name"] for line in tokens["series"]] == names and tokens["x"]["ticks"] == [1, 4, 16]
    assert tokens["x"]["label"] == "requests in flight, or batch size"
    ttft = found.chart("TTFT p95 against")
    assert [line["name"] for line in ttft["series"]] == ["vllm", "transformers serial", "llamacpp"]
    assert [line["at"] for line in ttft["hlines"]] == [200]
    pareto = found.chart("against output tokens/s/user")
    assert [line["name"] for line in pareto["series"]] == ["vllm", "transformers serial", "llamacpp", "frontier"]


def test_start_up_is_divided_by_phases(generators: EngineResults) -> None:
    chart = Page(engines_page.encode(generators)).chart("From the start of the process")
    assert [row["label"] for row in chart["rows"]] == [
        "vllm, cold: 43.4 s",
        "vllm, warm: 19.3 s",
        "transformers serial, first: 11.3 s",
    ]
    assert [part[:2] for part in chart["rows"][0]["parts"]] == [[0, 6.1], [6.1, 11], [11, 42], [42, 43.1], [43.1, 43.4]]


def test_ratios_are_drawn_with_their_intervals(generators: EngineResults) -> None:
    chart = Page(engines_page.encode(generators)).chart("vllm against the others, for interactive use")
    (row,) = chart["rows"]
    assert row["label"] == "transformers serial" and 1 < row["lo"] < row["at"] < row["hi"] and row["tone"] == "good"
    assert row["note"] == "5.08 requests/s at batch 1 (the highest measured)"


def test_encoders_have_their_own_charts(encoders: EngineResults) -> None:
    found = Page(engines_page.encode(encoders))
    assert "throughput" not in found.ids("section") and "encoders" in found.ids("section")
    chart = found.chart("Latency against the sequence length, batch 8")
    assert [line["x"] for line in chart["series"]] == [[32, 128]] * 3 and all(chart["series"][2]["hollow"])


def test_nothing_in_the_record_can_break_the_page() -> None:
    maker = made_campaign.Maker(1).measured(HOSTILE, facts={HOSTILE: HOSTILE}).failed(HOSTILE + "2")
    text = engines_page.encode(maker.results()).decode()
    assert "<title>owned" not in text and Page(text.encode()).ids("section")[0] == "answer"


def test_a_campaign_without_a_measured_engine_says_so() -> None:
    found = made_campaign.Maker().failed("vllm").failed("sglang").results()
    text = " ".join(Page(engines_page.encode(found)).text.split())
    assert "no engine can be recommended." in text and not ENGINES.is_passed(found)
    assert "vllm and sglang: not ready: " in text
    report = render(found, False, 100)
    assert "no engine can be recommended" in report and report.count("within 600 s") == 1


def test_an_engine_that_an_interruption_left_out_did_not_fail() -> None:
    maker = made_campaign.Maker(1).measured("vllm", levels=(1,))
    maker.engines[0] = msgspec.structs.replace(maker.engines[0], status="pending")
    found = maker.results(interrupted=True)
    why = "was not measured: the comparison was interrupted"
    page = " ".join(Page(engines_page.encode(found)).text.split())
    assert why in " ".join(render(found, False, 100).split()) and why in page


def test_charts_have_names_for_plot(generators: EngineResults) -> None:
    names = named_charts(engines_page.engines_page(generators))
    assert {"throughput-tokens", "latency-ttft-p95", "pareto", "startup"} <= set(names)


# --- stored ----------------------------------------------------------------------------------------------------------


def test_a_stored_campaign_is_opened_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = made_campaign.encoders()
    (tmp_path / CAMPAIGN).write_bytes(msgspec.json.encode(record))
    assert kind_of((str(tmp_path),)) == "engines" and read_record(tmp_path) == record
    found = open_campaign(tmp_path)
    paths = {name: str(tmp_path / f"out.{name}") for name in ("json", "html", "markdown", "csv", "junit")}
    assert deliver(ENGINES, found, paths) == 0 and "torch compiled is" in capsys.readouterr().out
    assert all(Path(path).stat().st_size > 100 for path in paths.values())
    assert deliver(ENGINES, found, {"json": "-"}) == 0 and json.loads(capsys.readouterr().out)["engines"]


def test_a_run_that_is_gone_leaves_its_level_without_figures(tmp_path: Path) -> None:
    record = made_campaign.Maker(1).measured("vllm", levels=(1,)).record()
    (tmp_path / CAMPAIGN).write_bytes(msgspec.json.encode(record))
    level = open_campaign(tmp_path).engines[0].levels[0]
    assert not level.valid and level.problems == ("its run vllm-1-0 cannot be read",)


def test_a_record_that_cannot_be_read_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / CAMPAIGN).write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        open_campaign(tmp_path)


@pytest.mark.slow
@pytest.mark.matplotlib
def test_every_chart_can_be_plotted(generators: EngineResults, encoders: EngineResults, tmp_path: Path) -> None:
    for found in (generators, encoders):
        page = engines_page.engines_page(found)
        few = {name: chart for name, chart in named_charts(page).items() if not name.startswith("latency-")}
        written = plot.write_charts(page, few, str(tmp_path / str(len(few))), "svg")
        assert len(written) == len(few) > 2 and all(b"<svg" in path.read_bytes() for path in written)
