"""The formula of each metric, on handmade rows with and without the values that it needs."""

import numpy as np
import pytest
from synthetic_run import MS, blank

from inferometer.analysis.metrics import METRICS
from inferometer.records import MISSING, Columns


def row(**columns: int) -> Columns:
    """Planned at 100 ms, sent at 103, first token at 150, last at 240, done at 250; ten tokens in five chunks."""
    made = blank(1)
    times = {"intended": 100, "sent": 103, "first_byte": 149, "first_token": 150, "last_token": 240, "done": 250}
    for name, at in times.items():
        made[name] = at * MS
    made["n_in"], made["n_out"], made["chunk_count"], made["open_loop"] = 64, 10, 5, 1
    for name, value in columns.items():
        made[name] = value
    return Columns.of(made)


def value(name: str, **columns: int) -> float:
    function = METRICS[name].values
    assert function is not None
    return float(function(row(**columns))[0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ttft", 0.050),
        ("ttft_service", 0.047),
        ("tpot", 0.010),
        ("e2e", 0.150),
        ("e2e_service", 0.147),
        ("ntpot", 0.015),
        ("lag", 0.003),
        ("client_lag", 0.003),
        ("tokens_per_chunk", 2.0),
        ("input_tokens", 64),
        ("output_tokens", 10),
    ],
)
def test_open_loop_formula(name: str, expected: float) -> None:
    assert value(name) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "expected"), [("ttft", 0.047), ("e2e", 0.147), ("ntpot", 0.0147), ("lag", 0.003)])
def test_closed_loop_counts_from_the_send_and_lag_does_not(name: str, expected: float) -> None:
    assert value(name, open_loop=0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("ttft", {"first_token": MISSING}),
        ("ttft_service", {"sent": MISSING}),
        ("ttft", {"sent": MISSING, "open_loop": 0}),
        ("tpot", {"last_token": MISSING}),
        ("tpot", {"n_out": 1}),
        ("tpot", {"n_out": -1}),
        ("e2e", {"done": MISSING}),
        ("ntpot", {"n_out": 0}),
        ("ntpot", {"n_out": -1}),
        ("lag", {"sent": MISSING}),
        ("client_lag", {"sent": MISSING}),
        ("read_delay", {"read_delay": -1}),
        ("tokens_per_chunk", {"chunk_count": 0}),
        ("tokens_per_chunk", {"n_out": -1}),
        ("input_tokens", {"n_in": -1}),
        ("output_tokens", {"n_out": -1}),
        ("cached_tokens", {"cached": -1}),
        ("reasoning_tokens", {"reasoning": -1}),
    ],
)
def test_missing_values_are_nan(name: str, without: dict[str, int]) -> None:
    assert np.isnan(value(name, **without))


def test_client_lag_excludes_time_spent_waiting() -> None:
    assert value("client_lag", held=2 * MS) == pytest.approx(0.001)
    assert value("lag", held=2 * MS) == pytest.approx(0.003)


def test_a_cache_hit_of_0_tokens_is_known() -> None:
    assert value("cached_tokens", cached=0) == 0


def test_every_metric_has_a_definition() -> None:
    assert all(name == metric.name and len(metric.definition) > 10 for name, metric in METRICS.items())
