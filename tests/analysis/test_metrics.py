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


AT_ONCE = {"n_out": 128, "chunk_count": 1, "first_tokens": 128, "streamed_tokens": 128, "last_token": 150 * MS}
"""128 tokens in one chunk: their time per token was reported as 0, and counted."""


@pytest.mark.parametrize(
    ("name", "expected", "columns"),
    [
        *(
            (name, expected, {})
            for name, expected in {
                "ttft": 0.050, "ttft_service": 0.047, "ttft_content": 0.070, "tpot": 0.010, "tps_user": 100.0, "e2e": 0.150,
                "e2e_service": 0.147, "ntpot": 0.015, "lag": 0.003, "client_lag": 0.003, "tokens_per_chunk": 2.0,
                "input_tokens": 64, "output_tokens": 10,
            }.items()
        ),
        *(  # a closed loop counts from the send, and lag does not
            (name, expected, {"open_loop": 0})
            for name, expected in {"ttft": 0.047, "e2e": 0.147, "ntpot": 0.0147, "lag": 0.003}.items()
        ),
        ("tpot", 0.090 / 6, {"first_tokens": 4}),  # the tokens of the first chunk are not divided by
        ("tpot", 0.010, {"n_out": 1010, "reasoning": 1000}),  # nor those that were never streamed
        ("client_lag", 0.001, {"held": 2 * MS}),
        ("lag", 0.003, {"held": 2 * MS}),
        ("cached_tokens", 0, {"cached": 0}),
    ],
)  # fmt: skip
def test_formula(name: str, expected: float, columns: dict[str, int]) -> None:
    assert value(name, **columns) == pytest.approx(expected)


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
        ("tpot", AT_ONCE),
        ("tps_user", AT_ONCE),
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


def test_every_metric_has_a_definition() -> None:
    assert all(name == metric.name and len(metric.definition) > 10 for name, metric in METRICS.items())
