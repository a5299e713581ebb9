"""The definitions by which other tools compute their figures, shared by `report --as` and by the report files in their format.

metrics.TOOL_FIGURES describes them in words. Times are in seconds since t=0 of the run; NaN is a value that is missing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.percentiles import Values
from inferometer.records import MISSING, Columns
from inferometer.units import NS

Seconds = NDArray[np.float64]


def starts(rows: Columns, is_capped: bool | NDArray[np.bool_]) -> Seconds:
    """When the HTTP client of another tool is called: before it waits for a connection, but after the cap on requests in flight.

    A request that never got a connection has no instant of sending; it starts when it was intended.
    """
    sent = rows["sent"]
    called = (sent - np.where(is_capped, 0, rows["held"])) / NS
    return np.where(sent == MISSING, rows["intended"] / NS, called)


def until(rows: Columns, start: Seconds, event: str) -> Seconds:
    """Seconds from the start to an event, which is a column of times."""
    column = rows[event]
    return np.where(column == MISSING, np.nan, column / NS - start)


def inference_perf_latencies(
    rows: Columns, start: Seconds, n_out: NDArray[np.float64], token_times: NDArray[np.integer[Any]], *, is_exact: bool
) -> dict[str, Seconds]:
    """inference-perf's latencies for each of these successful requests, but for inter_token_latency, which has many per request.

    `token_times` is the number of tokens of each response whose arrival is known. With `is_exact`, a response with fewer than two of
    them has no first token, and one without tokens took 0.0 per token. Otherwise the first token counts whenever it arrived, and
    what cannot be computed is missing.
    """
    latency = until(rows, start, "done")
    is_timed = token_times > 1
    if is_exact:
        first = np.where(is_timed, until(rows, start, "first_content"), np.nan)
        without_tokens: float = 0.0
    else:
        first = until(rows, start, "first_token")
        without_tokens = np.nan
    decoding = np.where(is_timed & (n_out > 1), until(rows, start, "last_token") - first, np.nan)
    return {
        "request_latency": latency,
        "normalized_time_per_output_token": np.where(n_out > 0, latency / np.maximum(n_out, 1), without_tokens),
        "time_per_output_token": decoding / np.maximum(n_out - 1, 1),
        "time_to_first_token": first,
    }


def interpolated(values: Values, shares: Sequence[float]) -> list[float]:
    """numpy's default percentiles: linear between the two nearest ranks. There must be at least one value.

    All are selected at once, and only they are converted: an array of gaps is too large to be copied as floats.
    """
    last = len(values) - 1
    positions = [last * share for share in shares]
    ranks = sorted({rank for at in positions for rank in (int(at), min(int(at) + 1, last))})
    ordered = np.partition(values, ranks) if ranks else values
    found = []
    for at in positions:
        low = float(ordered[int(at)])
        found.append(low + (float(ordered[min(int(at) + 1, last)]) - low) * (at - int(at)))
    return found
