"""The breakdown of end-to-end time: its parts add up, whether from times per request or from the server's totals."""

import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.breakdown import AVERAGES, PER_REQUEST, Breakdown, breakdown, split
from inferometer.analysis.summary import summarise
from inferometer.records import Run, Spent, StagePlan, StageStatistics
from inferometer.report import console

MS = made.MS


def unary(count: int = 100, open_loop: bool = False) -> np.ndarray:
    """Requests of 10 ms each, sent 1 ms after the intended instant."""
    rows = made.blank(count)
    rows["intended"] = np.arange(count) * 20 * MS
    rows["sent"] = rows["intended"] + MS
    rows["done"] = rows["sent"] + 10 * MS
    rows["n_in"] = rows["n_out"] = -1
    rows["open_loop"] = open_loop
    return rows


def sums(requests: int, **changes: object) -> StageStatistics:
    """2 ms of queue and 1 + 3 + 0.5 ms of compute for each request, in batches of 4."""
    return StageStatistics(
        **{
            "inferences": requests,
            "executions": requests // 4,
            "success": Spent(requests, requests * 7 * MS),
            "queue": Spent(requests, requests * 2 * MS),
            "compute_input": Spent(requests, requests * MS),
            "compute_infer": Spent(requests, requests * 3 * MS),
            "compute_output": Spent(requests, requests * MS // 2),
        }
        | changes
    )


def found(run: Run, stage: int | None = None) -> Breakdown | None:
    return breakdown(run, run.records.rows["failure"] == 0, stage)


def adds_up(split: Breakdown) -> bool:
    parts = split.client + split.overhead + (split.queue or 0) + (split.compute or 0)
    return parts == pytest.approx(split.e2e + split.excess) and min(split.overhead, split.excess) == 0


def of_two_stages(rows: np.ndarray, **about: object) -> Run:
    """The first 50 requests and the others."""
    rows["stage"] = rows["id"] >= 50
    return made.run(rows, plan=(StagePlan(type="closed", open=False),) * 2, **about)


def refused(run: Run, stage: int = 1) -> str | Breakdown:
    return split(run, run.records.rows["failure"] == 0, stage)


def test_breakdown_from_times_per_request() -> None:
    rows = unary(open_loop=True)
    rows["queue"], rows["compute"] = np.arange(100) * MS // 25, 5 * MS
    run = made.run(rows, statistics=(sums(100),))
    split = found(run)
    assert split is not None and split.source == PER_REQUEST and adds_up(split)
    assert (split.client, split.queue, split.compute) == pytest.approx((0.001, 0.00198, 0.005))
    summary = summarise(run)
    assert summary.breakdown == split and summary.no_breakdown is None
    assert summary.metrics["queue"].value("max") == pytest.approx(0.00396)
    assert summary.metrics["overhead"].value("max") == pytest.approx(0.005)
    assert split.network is None and not summary.metrics["network"].count
    rows["queue"][10:] = rows["compute"][10:] = -1  # requests without reported times are left out
    assert (some := found(made.run(rows))) is not None and some.requests == 10


def test_a_reported_total_separates_the_network_from_the_protocol() -> None:
    rows = unary(open_loop=True)
    rows["queue"], rows["compute"], rows["server_total"], rows["rtt"] = 2 * MS, 5 * MS, 8 * MS, MS // 2
    summary = summarise(made.run(rows))
    split = summary.breakdown
    assert split is not None and adds_up(split)
    assert (split.network, split.protocol, split.overhead, split.rtt) == pytest.approx((0.002, 0.001, 0.003, 0.0005))
    means = [summary.metrics[name].mean for name in ("network", "protocol", "overhead", "rtt")]
    assert means == pytest.approx([0.002, 0.001, 0.003, 0.0005])


def test_a_total_above_the_clients_time_gives_a_negative_network_that_is_not_hidden() -> None:
    rows = unary()
    rows["queue"], rows["compute"], rows["server_total"] = 2 * MS, 5 * MS, 11 * MS
    run = made.run(rows)
    summary = summarise(run)
    assert summary.breakdown is not None and summary.breakdown.network == pytest.approx(-0.001)
    assert summary.metrics["network"].value("p50") == pytest.approx(-0.001)
    assert "-1.000" in console.render(run, summary) and "a negative mean" in console.render(run, summary)


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        ({"compute": 5}, ["overhead", "compute"]),
        ({"queue": 2}, ["overhead", "queue"]),
        ({"server_total": 8}, ["network", "protocol"]),
        ({"compute": 5, "server_total": 8}, ["network", "protocol", "compute"]),
    ],
)
def test_a_server_may_report_only_some_of_its_times(times: dict[str, int], shown: list[str]) -> None:
    rows = unary()
    for name, value in times.items():
        rows[name] = value * MS
    run = made.run(rows, statistics=(sums(100),))
    summary = summarise(run)
    split = summary.breakdown
    assert split is not None and split.source == PER_REQUEST and split.requests == 100
    assert split.reported == {name: value / 1e3 for name, value in times.items() if name != "server_total"}
    assert split.client + split.overhead + sum(split.reported.values()) == pytest.approx(split.e2e)
    assert split.network is None or split.network + (split.protocol or 0) == pytest.approx(split.overhead)
    (line,) = [line for line in console.render(run, summary).splitlines() if "where the time went" in line]
    assert line.split(", ms")[1].split() == ["e2e", "client", *shown]


def test_breakdown_from_the_servers_totals() -> None:
    split = found(made.run(unary(), statistics=(sums(100),)))
    assert split is not None and split.source == AVERAGES and adds_up(split)
    assert (split.e2e, split.client, split.overhead) == pytest.approx((0.010, 0, 0.0035))
    assert (split.queue, split.compute) == pytest.approx((0.002, 0.0045))
    assert (split.compute_input, split.compute_infer, split.compute_output) == pytest.approx((0.001, 0.003, 0.0005))
    assert (split.requests, split.counted, split.batch, split.cache) == (100, 100, 4.0, 0.0)


def test_cache_lookups_are_part_of_compute_and_other_clients_requests_are_counted() -> None:
    statistics = sums(150, cache_hit=Spent(50, 50 * 3 * MS), cache_miss=Spent(100, 100 * 3 * MS))
    split = found(made.run(unary(), statistics=(statistics,)))
    assert split is not None and adds_up(split)
    assert (split.cache, split.counted, split.requests) == (pytest.approx(0.003), 150, 100)


def test_stages_have_their_own_breakdown_and_the_run_has_none_if_one_is_missing() -> None:
    rows = unary()
    rows["done"][50:] += 10 * MS
    run = of_two_stages(rows, statistics=(sums(50), sums(50, queue=Spent(50, 50 * 12 * MS))))
    first, second, whole = found(run, 0), found(run, 1), found(run)
    assert first is not None and second is not None and whole is not None
    assert (first.e2e, second.e2e, whole.e2e) == pytest.approx((0.010, 0.020, 0.015))
    assert (first.queue, second.queue, whole.queue) == pytest.approx((0.002, 0.012, 0.007))
    assert first.overhead == pytest.approx(second.overhead)
    assert [stage.breakdown for stage in summarise(run).stages] == [first, second]
    gap = of_two_stages(rows, statistics=(sums(50), None))
    assert found(gap) is None and found(gap, 0) == first and found(gap, 1) is None


# --- what the server says beyond what the client saw ------------------------------------------------------------------


def test_totals_above_the_clients_time_give_an_excess_and_no_overhead() -> None:
    """The client saw 10 ms; the totals have 2 ms of queue and 1 + 3 + 9 ms of compute."""
    longer = sums(100, compute_output=Spent(100, 100 * 9 * MS))
    split = found(made.run(unary(open_loop=True), statistics=(longer,)))
    assert split is not None and adds_up(split)
    assert (split.e2e, split.client, split.overhead) == pytest.approx((0.011, 0.001, 0))
    assert (split.queue, split.compute, split.excess) == pytest.approx((0.002, 0.013, 0.005))
    rows = unary()
    rows["queue"], rows["compute"] = 4 * MS, 7 * MS
    split = found(made.run(rows))
    assert split is not None and adds_up(split) and split.source == PER_REQUEST
    assert (split.overhead, split.queue, split.compute, split.excess) == pytest.approx((0, 0.004, 0.007, 0.001))


def test_definitions_include_the_breakdown_only_if_there_is_one() -> None:
    assert (
        "after a response was sent"
        in summarise(made.run(unary(), statistics=(sums(100),))).definitions["breakdown.excess"]
    )
    assert not [name for name in summarise(made.run(unary())).definitions if name.startswith("breakdown.")]


# --- no breakdown ------------------------------------------------------------------------------------------------

KSERVE = {"name": "s"}
NONE = "the server offers no statistics"


def test_reason_why_there_is_no_breakdown() -> None:
    def why(run: Run) -> str | None:
        summary = summarise(run)
        assert summary.breakdown is None
        return summary.no_breakdown

    failed = unary()
    made.fail(failed, slice(0, 100))
    uncounted = sums(100, success=Spent(0, 0))
    assert why(made.run(unary())) == "the server does not report how long it took: its responses have no server-timing"
    assert why(made.run(unary(), server=KSERVE)) == "the server's statistics were not read"
    assert why(made.run(unary(), server=KSERVE, statistics=(None,), no_statistics=(NONE,))) == NONE
    assert why(made.run(unary(), server=KSERVE, statistics=(uncounted,))) == (
        "the server's statistics count no successful request"
    )
    assert why(made.run(unary(), server={"decoupled": True}, statistics=(sums(100),))) == (
        "the statistics of a decoupled model end before it responds"
    )
    assert why(made.run(failed, statistics=(sums(100),))) == "no request succeeded"


def test_the_reason_names_the_stage_without_statistics() -> None:
    rows = unary()
    run = of_two_stages(rows, server=KSERVE, statistics=(sums(50), None), no_statistics=("", NONE))
    summary = summarise(run)
    assert summary.no_breakdown == f"stage 2: {NONE}"
    assert [stage.no_breakdown for stage in summary.stages] == [None, NONE]
    early = of_two_stages(rows, server=KSERVE, statistics=(sums(50),), no_statistics=("",))
    assert refused(early) == "the server's statistics were not read"
    made.fail(rows, slice(50, 100))
    failed = of_two_stages(rows, server=KSERVE, statistics=(sums(50), sums(9)))
    assert refused(failed) == "no request of the stage succeeded"


def test_a_stage_too_short_for_statistics_does_not_affect_the_others() -> None:
    """All successful requests of both stages are counted in the first."""
    run = of_two_stages(unary(), server=KSERVE, statistics=(sums(100), sums(0)))
    whole, first = found(run), found(run, 0)
    assert whole is not None and first is not None and (whole.requests, first.requests) == (100, 100)
    assert refused(run) == (
        "the stage was too short: the server's statistics cannot be separated from those of the stages next to it"
    )
