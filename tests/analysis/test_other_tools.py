"""What other tools would report, against their formulas applied to the raw rows one by one."""

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

import msgspec
import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.metrics import METRICS, RATES, TOOL_FIGURES
from inferometer.analysis.other_tools import Figure, ReportAs, StageAs, report_as
from inferometer.analysis.summary import summarise
from inferometer.errors import UserError
from inferometer.records import Failure, Run
from inferometer.report import console
from inferometer.report.document import Document
from inferometer.report.json import encode
from inferometer.report.other_tools import other_tools_table

MS, SECOND = made.MS, made.SECOND


def varied(**about: object) -> Run:
    """An open loop whose requests differ: prompts, waits for a connection, tokens per chunk, failures, and a warm-up of 50."""
    rng = np.random.default_rng(7)
    rows, chunks = made.open_rows()
    rows["n_in"], rows["n_out"] = rng.integers(10, 500, 600), rng.integers(10, 30, 600)
    rows["intended"] -= 2 * MS
    rows["held"] = rng.integers(0, 90_000, 600)
    rows["first_tokens"], rows["streamed_tokens"] = 3, rows["n_out"]
    made.fail(rows, [3, 200, 590])
    phase = np.ones(600, np.int8)
    phase[:50] = 0
    about = {"plan": (made.OPEN,), "failures": (Failure("http_503", ""),)} | about
    return made.run(rows, chunks, phase=phase, **about)


def of(run: Run, tool: str) -> ReportAs:
    return report_as(tool, run, summarise(run))


def figures(run: Run, tool: str) -> dict[str, Figure]:
    (stage,) = of(run, tool).stages
    return {f"{each.statistic} {each.figure}".strip(): each for each in stage.figures}


def arrivals(run: Run) -> Callable[[np.void], list[float]]:
    """The chunks of a row, in seconds."""
    (chunks,) = run.chunks()
    return lambda row: [at / SECOND for at in chunks.arrival[row["chunk_start"] :][: row["chunk_count"]].tolist()]


def check(found: dict[str, Figure], expected: dict[str, list[float]]) -> None:
    for name, values in expected.items():
        assert found[f"mean {name}"].theirs == pytest.approx(fmean(values))
        assert found[f"median {name}"].theirs == pytest.approx(np.percentile(values, 50))
        assert found[f"p99 {name}"].theirs == pytest.approx(np.percentile(values, 99))


def test_vllm_bench() -> None:
    run = varied()
    chunks = arrivals(run)
    ttfts, tpots, itls, e2els = [], [], [], []
    total_in = total_out = 0
    for row in run.records.rows:
        if row["failure"]:
            continue
        start = (int(row["sent"]) - int(row["held"])) / SECOND
        times = chunks(row)
        ttfts.append(times[0] - start)
        e2els.append(times[-1] - start)
        itls += [after - before for before, after in pairwise(times)]
        tpots.append((e2els[-1] - ttfts[-1]) / (int(row["n_out"]) - 1))
        total_in, total_out = total_in + int(row["n_in"]), total_out + int(row["n_out"])
    duration = int(run.records.rows["done"].max()) / SECOND
    found = figures(run, "vllm-bench")
    check(found, {"TTFT": ttfts, "TPOT": tpots, "ITL": itls, "E2EL": e2els})
    assert found["Request throughput"].theirs == pytest.approx(597 / duration)
    assert found["Output token throughput"].theirs == pytest.approx(total_out / duration)
    assert found["Total token throughput"].theirs == pytest.approx((total_in + total_out) / duration)
    (stage,) = of(run, "vllm-bench").stages
    assert (stage.completed, stage.failed) == (597, 3)


def test_inference_perf() -> None:
    run = varied()
    chunks = arrivals(run)
    latencies, ttfts, tpots, ntpots, itls = [], [], [], [], []
    starts, ends, total_in, total_out = [], [], 0, 0
    for row in run.records.rows:
        start, end = (int(row["sent"]) - int(row["held"])) / SECOND, int(row["done"]) / SECOND
        starts.append(start)
        ends.append(end)
        if row["failure"]:
            continue
        times = chunks(row)
        latencies.append(end - start)
        ntpots.append((end - start) / int(row["n_out"]))
        ttfts.append(times[0] - start)
        tpots.append((times[-1] - times[0]) / (int(row["n_out"]) - 1))
        itls += [after - before for before, after in pairwise(times)]
        total_in, total_out = total_in + int(row["n_in"]), total_out + int(row["n_out"])
    duration = max(ends) - min(starts)
    found = figures(run, "inference-perf")
    check(
        found,
        {
            "request_latency": latencies,
            "time_to_first_token": ttfts,
            "time_per_output_token": tpots,
            "normalized_time_per_output_token": ntpots,
            "inter_token_latency": itls,
        },
    )
    assert found["requests_per_sec"].theirs == pytest.approx(597 / duration)
    assert found["input_tokens_per_sec"].theirs == pytest.approx(total_in / duration)
    assert found["output_tokens_per_sec"].theirs == pytest.approx(total_out / duration)
    assert found["total_tokens_per_sec"].theirs == pytest.approx((total_in + total_out) / duration)
    assert found["achieved_rate"].theirs == pytest.approx(600 / (max(starts) - min(starts)))


@pytest.mark.parametrize("tool", TOOL_FIGURES)
def test_every_difference_has_a_reason_and_no_other_figure_has_one(tool: str) -> None:
    for figure in figures(varied(), tool).values():
        assert figure.theirs is not None and figure.ours is not None
        differs = not math.isclose(figure.theirs, figure.ours, rel_tol=0.001)
        assert bool(figure.reason) == differs, figure


def test_reasons_are_those_of_the_run() -> None:
    late = varied()
    found = figures(late, "vllm-bench")
    assert "after the intended instant" in found["mean TTFT"].reason
    assert "(49 requests)" in found["mean TTFT"].reason
    assert "all output tokens - 1" in found["mean TPOT"].reason
    assert "fills and drains" in found["Request throughput"].reason
    rows, chunks = made.closed_rows()
    assert "intended" not in figures(made.run(rows, chunks), "vllm-bench")["mean TTFT"].reason


def test_waiting_at_a_cap_does_not_count_for_them() -> None:
    capped = msgspec.structs.replace(made.OPEN, concurrency=8)
    with_cap, without = (
        figures(varied(plan=(plan,)), "vllm-bench")["mean TTFT"].theirs for plan in (capped, made.OPEN)
    )
    assert with_cap is not None and without is not None and with_cap < without


def test_stages_are_reported_one_by_one() -> None:
    rows, chunks = made.open_rows()
    rows["stage"] = np.arange(600) // 200
    run = made.run(rows, chunks, plan=(made.OPEN,) * 3)
    assert [stage.completed for stage in of(run, "inference-perf").stages] == [200, 200, 200]


def test_definitions_name_figures_of_ours() -> None:
    ours = {*METRICS, *(f"throughput.{name}" for name in RATES)}
    assert {figure.ours for figures in TOOL_FIGURES.values() for figure in figures} <= ours


@pytest.mark.parametrize("tool", TOOL_FIGURES)
def test_run_that_was_not_streamed_has_no_token_times_but_a_note(tool: str) -> None:
    rows = made.blank(30)
    rows["intended"] = rows["sent"] = np.arange(30) * SECOND
    rows["done"] = rows["sent"] + 500 * MS
    rows["n_in"], rows["n_out"] = 10, 20
    config = {"server": {"url": "http://a", "model": "m", "stream": False}, "data": {"type": "synthetic"}}
    found = of(made.run(rows, config=config), tool)
    assert any("not streamed" in note for note in found.notes)
    assert "nan" not in shown(found).lower()
    (stage,) = found.stages
    assert {each.theirs for each in stage.figures if each.our_name.startswith("ttft")} == {None}


def test_run_of_failures_has_no_latencies() -> None:
    rows, chunks = made.open_rows(30)
    made.fail(rows, slice(None))
    run = made.run(rows, chunks, plan=(made.OPEN,), failures=(Failure("http_503", ""),))
    found = of(run, "vllm-bench")
    assert found.stages[0].completed == 0
    assert "nan" not in shown(found) + encode(found).decode()


def test_run_without_requests_or_text_is_refused() -> None:
    with pytest.raises(UserError, match="no request of the run was sent"):
        of(made.run(made.blank(0), sampled=()), "vllm-bench")
    tensors = {"server": {"url": "grpc://a", "model": "m", "api": "kserve"}, "data": {"type": "tensors"}}
    rows = made.blank(30)
    rows["done"] = 8 * MS
    with pytest.raises(UserError, match="generated text"):
        of(made.run(rows, config=tensors), "inference-perf")


def shown(found: ReportAs, width: int = 100) -> str:
    return console.text(Document((), [other_tools_table(found)]), width=width, is_tight=True)


@pytest.mark.parametrize("tool", TOOL_FIGURES)
@pytest.mark.parametrize("width", [70, 100])
def test_table_has_their_names_and_the_reasons(tool: str, width: int) -> None:
    found = of(varied(), tool)
    text = shown(found, width)
    assert all(figure.label in text for figure in TOOL_FIGURES[tool])
    assert "(1)" in text and max(map(len, text.splitlines())) <= width
    assert isinstance(found.stages[0], StageAs)
