"""Do 95 % intervals hold when latencies are correlated? A quick version of bench/coverage, with wide margins.

Taken for independent, the intervals of the first case hold in about 30 % (p50) and 15 % (p99) of the runs, and those of the
second in about 15 %.
"""

import numpy as np
import pytest

from bench import simulate
from bench.coverage import Score, engine, measured, queue


def scores(case: object, runs: int) -> dict[str, Score]:
    rng, truth = np.random.default_rng(0), case.truth()  # type: ignore[attr-defined]
    found = {figure: Score() for figure in case.figures}  # type: ignore[attr-defined]
    for _ in range(runs):
        result = measured(case.make(rng), case.metric)  # type: ignore[attr-defined]
        for figure, score in found.items():
            score.add(truth[figure], result.ci[figure], result, figure)
    return found


def test_row_1_interval_of_p50_and_p99_in_a_queue_at_load_0_8() -> None:
    runs = 200
    found = scores(queue(0.8, 3_000, ("p50", "p90", "p99", "mean")), runs)
    assert found["p50"].held >= 0.88 * runs and found["mean"].held >= 0.85 * runs
    assert found["p99"].bounds_held >= 0.9 * found["p99"].bounds and found["p99"].open >= 0.95 * runs
    assert found["p90"].bounds_held >= 0.88 * found["p90"].bounds


def test_row_2_interval_of_itl_p99_in_a_step_synchronous_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = 60
    monkeypatch.setattr("bench.coverage.TRUTH_RUNS", 40)
    found = scores(engine(60, 1, ("p50", "p90", "p99")), runs)
    assert found["p99"].held >= 0.85 * runs and found["p50"].held >= 0.8 * runs
    assert found["p99"].effect / runs > 10, "32 slots share each step"


def test_intervals_of_independent_requests_are_not_much_too_wide() -> None:
    """Under load 0.5 the effective size of 10,000 requests supports a p99; of independent ones, that of 1,000 does."""
    found = measured(simulate.requests_run(*simulate.independent(np.random.default_rng(0), 1_000)), "e2e")
    assert "p99" not in found.unsupported
    found = measured(simulate.requests_run(*simulate.queue(np.random.default_rng(0), 0.8, 1_000)), "e2e")
    assert "p99" in found.unsupported and found.unsupported["p99"].needs == 459


def test_quiet_server_supports_its_p99_although_its_values_drift_together() -> None:
    found = [
        measured(simulate.requests_run(*simulate.quiet(np.random.default_rng(seed), 5_000)), "e2e")
        for seed in range(20)
    ]
    assert all(each.supported["p50"] and each.supported["p90"] for each in found)
    assert sum(each.supported["p99"] for each in found) >= 19 and np.median([each.effective for each in found]) > 4_000
    assert np.median([each.design_effect["p99"] for each in found]) > 5, "the interval still counts the drift"
    assert all(each.p99 == pytest.approx(simulate.QUIET, rel=0.05) for each in found)


@pytest.mark.parametrize("service", [0.0, 0.2, 0.5])
def test_queue_beside_a_longer_service_does_not_look_quiet(service: float) -> None:
    """The p99 is up to 230 ms above the service, and 5,000 requests at this load cannot know it."""
    for seed in range(20):
        at, waited = simulate.queue(np.random.default_rng(seed), 0.8, 5_000)
        assert not measured(simulate.requests_run(at, service + waited), "e2e").supported["p99"]


def test_how_much_longer_to_run_for_a_supported_p99() -> None:
    """Running that much longer brings the effective size to what is needed, up to the noise of the estimate."""
    effective = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        short = measured(simulate.requests_run(*simulate.queue(rng, 0.5, 3_000)), "e2e").unsupported.get("p99")
        if short is not None and short.more_seconds is not None:
            longer = 3_000 + round(short.more_seconds * 0.5 / simulate.SERVICE)
            effective.append(measured(simulate.requests_run(*simulate.queue(rng, 0.5, longer)), "e2e").effective)
    assert len(effective) >= 20 and 300 < np.median(effective) < 800
