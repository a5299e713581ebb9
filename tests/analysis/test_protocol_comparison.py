"""Cells of a protocol comparison, from runs with known results."""

import msgspec
import pytest
import synthetic_run as made
from protocol_runs import measured

from inferometer.analysis.breakdown import AVERAGES, PER_REQUEST
from inferometer.analysis.protocol_comparison import PROTOCOLS, Cell, Comparison, cell_of
from inferometer.analysis.summary import Measured, summarise


def cell(*runs: Measured, kept: bool = False) -> Cell:
    return cell_of("http", 1000, runs, kept)


def test_one_round_has_the_results_of_its_run() -> None:
    run, summary = measured(2.0, reported=(0.25, 0.5))
    found = cell((run, summary))
    assert found.e2e == summary.metrics["e2e"]
    assert found.throughput == summary.throughput.requests
    assert (found.ok, found.failed, found.verdict, found.reasons) == (500, 0, "VALID", ())
    assert (found.bytes_out, found.bytes_in) == (1200, 1100)
    assert found.runs == ()


def test_times_per_request_are_queue_and_compute() -> None:
    found = cell(measured(2.0, reported=(0.25, 0.5)))
    assert found.source == PER_REQUEST
    assert (found.queue, found.compute) == (pytest.approx(0.25e-3), pytest.approx(0.5e-3))
    assert found.server == pytest.approx(0.75e-3)
    assert found.mean == pytest.approx(2.2495e-3) == found.e2e.mean
    assert found.overhead == pytest.approx(found.mean - found.server)


def test_totals_are_averaged_and_strangers_are_counted() -> None:
    found = cell(measured(2.0, sums=(0.25, 0.5)), measured(2.0, sums=(0.25, 1.5), others=7))
    assert found.source == AVERAGES
    assert found.server == pytest.approx(1.25e-3)
    assert found.strangers == 7


def test_no_split_if_the_server_reports_no_times() -> None:
    found = cell(measured(2.0))
    assert (found.source, found.server, found.overhead, found.mean) == (None, None, None, None)
    assert found.e2e.mean == pytest.approx(2.2495e-3)


@pytest.mark.parametrize("other", [{}, {"sums": (0.1, 0.1)}], ids=["one round is silent", "two sources"])
def test_no_split_if_rounds_have_different_sources(other: dict[str, tuple[float, float]]) -> None:
    assert cell(measured(2.0, reported=(0.25, 0.5)), measured(2.0, **other)).server is None


def test_rounds_are_one_sample_in_which_every_request_counts_the_same() -> None:
    fast, slow = measured(1.0, 300, reported=(0.0, 0.5), sent=1000), measured(9.0, 100, reported=(0.0, 4.5), sent=2000)
    found = cell(fast, slow)
    assert (found.ok, found.e2e.count) == (400, 400)
    assert found.e2e.max == pytest.approx(9.099e-3) and found.e2e.value("p50") == pytest.approx(1.199e-3)
    assert found.server == pytest.approx((300 * 0.5e-3 + 100 * 4.5e-3) / 400)
    assert found.bytes_out == pytest.approx(1250)
    seconds = sum((run.records.rows["done"].max()) / 1e9 for run, _ in (fast, slow))
    assert found.throughput == pytest.approx(400 / seconds, rel=0.01)


def test_one_invalid_round_makes_the_cell_invalid_and_says_why_once() -> None:
    found = cell(measured(2.0), measured(2.0, failed=100), measured(2.0, failed=100))
    assert found.verdict == "INVALID"
    assert (found.ok, found.failed) == (1300, 200)
    (reason,) = found.reasons
    assert reason.startswith("failures: ")


def test_failed_requests_do_not_count_for_times_or_bytes() -> None:
    run, _ = measured(2.0, failed=100)
    rows = run.records.rows
    rows["bytes_in"][:100] = 9
    rows["done"][:100] += 1000 * made.MS
    found = cell((run, summarise(run)))
    assert found.bytes_in == 1100
    assert found.e2e.max == pytest.approx(2.499e-3)


def test_no_results_without_a_successful_request() -> None:
    found = cell(measured(2.0, 20, failed=20))
    assert (found.verdict, found.ok, found.e2e.count) == ("INVALID", 0, 0)
    assert (found.bytes_out, found.server, found.e2e.value("p50")) == (None, None, None)


def test_a_run_too_short_for_a_second_request_is_reported() -> None:
    run, _ = measured(2.0, 1)
    run.records.phase[:] = 0
    found = cell((run, summarise(run)))
    assert (found.verdict, found.ok) == ("INVALID", 0)
    assert [reason.partition(":")[0] for reason in found.reasons] == ["too short"]


def test_folders_are_listed_only_if_they_are_kept() -> None:
    assert cell(measured(2.0), measured(2.0), kept=True).runs == ("/runs/made", "/runs/made")


def test_a_comparison_is_valid_if_it_completed_and_all_cells_are_valid() -> None:
    good, bad = cell(measured(2.0)), cell(measured(2.0, failed=100))
    complete = Comparison(model="m", concurrency=1, cells=(good, good))
    assert complete.is_valid
    assert not msgspec.structs.replace(complete, cells=(good, bad)).is_valid
    assert not msgspec.structs.replace(complete, interrupted=True).is_valid


def test_a_comparison_survives_json() -> None:
    complete = Comparison(
        model="m", concurrency=1, cells=tuple(cell_of(way, 8, [measured(1.0)], True) for way in PROTOCOLS)
    )
    assert msgspec.json.decode(msgspec.json.encode(complete), type=Comparison) == complete


def test_server_time_above_the_clients_gives_an_excess_and_no_overhead() -> None:
    found = cell(measured(2.0, sums=(0.25, 2.5)))
    assert found.mean is not None and found.server is not None
    assert (found.overhead, found.server) == (0, pytest.approx(2.75e-3))
    assert found.excess == pytest.approx(found.server - found.mean)


def test_an_excess_in_one_round_is_offset_by_another() -> None:
    found = cell(measured(2.0, sums=(0.0, 3.0)), measured(4.0, sums=(0.0, 3.0)))
    assert (found.overhead, found.excess) == (pytest.approx(0.2495e-3), 0)


def test_no_split_has_a_reason() -> None:
    silent, reported = measured(2.0), measured(2.0, reported=(0.25, 0.5))
    assert (
        cell(reported, silent).no_split
        == "the server does not report how long it took: its responses have no server-timing"
    )
    assert "only some of the rounds" in (cell(reported, measured(2.0, sums=(0.1, 0.1))).no_split or "")
    assert cell(reported).no_split is None
