"""perf_analyzer's CSV against golden files, and as an option of `run` and `report`."""

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import synthetic_run as made
from command import assert_one_line, cli

from inferometer import store
from inferometer.analysis.summary import summarise
from inferometer.records import Failure, Run, Spent, StagePlan, StageStatistics
from inferometer.report import perf_csv

GOLDEN = Path(__file__).parent / "golden"
LEVELS = tuple(StagePlan(type="closed", open=False, name=f"concurrency {n}", concurrency=n) for n in (4, 8))


def statistics(count: int) -> StageStatistics:
    def spent(us: int) -> Spent:
        return Spent(count, count * us * 1000)

    return StageStatistics(
        inferences=4 * count,
        executions=count // 2,
        success=spent(90_000),
        queue=spent(20_000),
        compute_input=spent(1_000),
        compute_infer=spent(60_000),
        compute_output=spent(2_000),
        cache_miss=spent(500),
    )


def by_statistics() -> Run:
    """Two levels of a closed loop with batches of 4; the server reports sums."""
    rows, chunks = made.closed_rows()
    rows["stage"] = rows["id"] >= 300
    return made.run(rows, chunks, plan=LEVELS, server={"batch": 4}, statistics=(statistics(300), statistics(300)))


def beyond() -> Run:
    """The first level is as above; in the second the server reports more time than the client saw."""
    run = by_statistics()
    first, second = run.manifest.statistics
    assert second is not None
    longer = msgspec.structs.replace(second, compute_output=Spent(300, 300 * 90 * made.MS))
    return msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, statistics=(first, longer)))


def by_request() -> Run:
    """An open loop; the server reports for each request how long it waited and worked."""
    rows, chunks = made.open_rows()
    rows["queue"], rows["compute"] = 20 * made.MS, 60 * made.MS
    return made.run(rows, chunks, plan=(made.OPEN,))


def without_server_times() -> Run:
    """Both kinds of load; the server reports nothing, and the second stage was never reached."""
    rows, chunks = made.closed_rows()
    return made.run(rows, chunks, plan=(made.CLOSED, made.OPEN))


RUNS: dict[str, Callable[[], Run]] = {
    "statistics": by_statistics, "request": by_request, "without_server_times": without_server_times, "beyond": beyond,
}  # fmt: skip


def written(run: Run) -> str:
    file = io.BytesIO()
    perf_csv.write(run, summarise(run), file)
    return file.getvalue().decode()


@pytest.mark.golden
@pytest.mark.parametrize("name", RUNS)
def test_the_bytes(name: str) -> None:
    found, path = written(RUNS[name]()), GOLDEN / f"perf_{name}.csv"
    if os.environ.get("INFEROMETER_UPDATE_GOLDEN"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_the_parts_add_up_to_the_mean_latency_and_inferences_are_batches_times_requests() -> None:
    run = by_statistics()
    summary = summarise(run)
    for line, stage in zip(csv.DictReader(io.StringIO(written(run))), summary.stages, strict=True):
        parts = [int(line[name]) for name in perf_csv.COLUMNS[1:8]]
        assert stage.breakdown is not None
        assert sum(parts) == pytest.approx(stage.breakdown.e2e * 1e6, abs=4)
        assert float(line["Inferences/Second"]) == pytest.approx(4 * (stage.throughput.requests or 0), rel=1e-4)
        assert int(line["Server Compute Infer"]) == 60_500


def test_time_that_the_server_reports_beyond_the_latency_has_a_column() -> None:
    run = beyond()
    first, second = csv.DictReader(io.StringIO(written(run)))
    assert (first[perf_csv.EXCESS], second["Network+Server Send/Recv"]) == ("0", "0")
    split = summarise(run).stages[1].breakdown
    assert split is not None
    parts = sum(int(second[name]) for name in perf_csv.COLUMNS[1:8])
    assert parts - int(second[perf_csv.EXCESS]) == pytest.approx(split.e2e * 1e6, abs=4)
    assert perf_csv.EXCESS not in written(by_statistics())


def test_a_stage_without_responses_is_a_row_without_numbers() -> None:
    run = made.run(made.blank(0), sampled=())
    assert written(run).splitlines()[1] == "8" + "," * 12


def test_failures_that_count_as_infinite_make_percentiles_infinite() -> None:
    rows, chunks = made.closed_rows()
    made.fail(rows, slice(0, 12))
    config = made.manifest().config | {"measure": {"failures_as_inf": True}}
    run = made.run(rows, chunks, config=config, failures=(Failure("http_503", ""),))
    line = next(csv.DictReader(io.StringIO(written(run))))
    assert line["p99 latency"] == "inf"
    assert int(line["p95 latency"]) > 0


def stored(folder: Path) -> Path:
    run = by_statistics()
    run_folder = folder / "run"
    run_folder.mkdir()
    store.write(run_folder, run.manifest, run.records, run.chunks())
    return run_folder


def test_report_writes_it_to_a_file_or_to_standard_output(tmp_path: Path) -> None:
    folder = stored(tmp_path)
    assert cli("report", folder, "--perf-csv", tmp_path / "out.csv").out
    expected = (GOLDEN / "perf_statistics.csv").read_text(encoding="utf-8")
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == expected
    assert cli("report", folder, "--perf-csv", "-").out == expected


def test_only_one_can_have_standard_output_and_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert_one_line(cli("report", tmp_path, "--perf-csv", "-", "--csv", "-"), "--csv - and --perf-csv -")
    assert_one_line(cli("report", tmp_path, "--perf-csv", tmp_path), "is a folder")


def test_the_means_are_those_of_the_breakdown() -> None:
    run = by_request()
    line = next(csv.DictReader(io.StringIO(written(run))))
    e2e = np.mean(run.records.rows["done"] - run.records.rows["intended"]) / 1000
    assert line["Request Rate"] == "100"
    assert (line["Client Send"], line["Server Queue"], line["Server Compute Infer"]) == ("100", "20000", "60000")
    assert int(line["Network+Server Send/Recv"]) == pytest.approx(e2e - 100 - 80_000, abs=1)
