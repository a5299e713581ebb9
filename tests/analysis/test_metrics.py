"""The formula of each metric, on handmade rows with and without the values that it needs."""

import numpy as np
import pytest
from synthetic_run import MS, blank

from inferometer.analysis.metrics import METRICS
from inferometer.records import MISSING, Columns


def row(**columns: int) -> Columns:
    """Planned at 100 ms, sent at 103, first token at 150, last at 240, done at 250; ten tokens in five chunks, the first with one."""
    made = blank(1)
    times = {"intended": 100, "sent": 103, "first_byte": 149, "first_token": 150, "last_token": 240, "done": 250}
    times["first_content"] = 170
    for name, at in times.items():
        made[name] = at * MS
    made["n_in"], made["n_out"], made["chunk_count"], made["open_loop"] = 64, 10, 5, 1
    made["first_tokens"], made["streamed_tokens"] = 1, 10
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
        ("ttft_content", 0.070),
        ("tpot", 0.010),
        ("tps_user", 100.0),
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
        ("ttft_content", {"first_content": MISSING}),
        ("tpot", {"chunk_count": 1}),
        ("tpot", {"streamed_tokens": 1}),
        ("tpot", {"n_out": 1, "streamed_tokens": -1}),
        ("tpot", {"n_out": -1, "streamed_tokens": -1}),
        ("tps_user", {"chunk_count": 1}),
        ("tps_user", {"last_token": 150 * MS}),
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


def test_128_tokens_in_one_chunk_have_no_tpot() -> None:
    """The seventh row of the table: it was reported as 0, and counted."""
    at_once = {"n_out": 128, "chunk_count": 1, "first_tokens": 128, "streamed_tokens": 128, "last_token": 150 * MS}
    assert np.isnan(value("tpot", **at_once)) and np.isnan(value("tps_user", **at_once))


def test_tokens_of_the_first_chunk_are_not_divided_by() -> None:
    assert value("tpot", first_tokens=4) == pytest.approx(0.090 / 6)


def test_tokens_that_were_never_streamed_are_not_divided_by() -> None:
    assert value("tpot", n_out=1010, reasoning=1000) == pytest.approx(0.010)


def test_tpot_is_estimated_if_the_tokens_of_chunks_are_not_known() -> None:
    """Ten tokens in five chunks: the first chunk is taken to have two."""
    unknown = {"first_tokens": -1, "streamed_tokens": -1}
    assert value("tpot", **unknown) == pytest.approx(0.090 / 8) and value("tps_user", **unknown) == pytest.approx(
        8 / 0.090
    )
    for name in ("tpot", "tps_user"):
        estimated = METRICS[name].estimated
        assert estimated is not None and estimated(row(**unknown)).all() and not estimated(row()).any()


def test_only_times_until_a_response_can_be_infinite() -> None:
    assert {name for name, metric in METRICS.items() if metric.can_fail} == {
        *("ttft", "ttft_service", "ttft_content", "e2e", "e2e_service")
    }


def test_client_lag_excludes_time_spent_waiting() -> None:
    assert value("client_lag", held=2 * MS) == pytest.approx(0.001)
    assert value("lag", held=2 * MS) == pytest.approx(0.003)


def test_a_cache_hit_of_0_tokens_is_known() -> None:
    assert value("cached_tokens", cached=0) == 0


def test_every_metric_has_a_definition() -> None:
    assert all(name == metric.name and len(metric.definition) > 10 for name, metric in METRICS.items())
