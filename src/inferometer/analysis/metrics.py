"""Every metric, once: its name, its unit, what it is in words, and how it comes from the columns.

Console, JSON, CSV and docs read METRICS. Latency counts from `start`: in open loop the instant that the plan had, so that a
request which had to wait is charged the wait; in closed loop, which has no schedule to be late for, the send. `*_service`
always counts from the send. A value that cannot be had is NaN: left out and counted, never 0.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.records import MISSING, Columns
from inferometer.units import NS

Column = NDArray[np.float64]


class Metric(msgspec.Struct, frozen=True):
    name: str
    unit: Literal["s", "tokens", "tokens/chunk"]
    definition: str
    values: Callable[[Columns], Column] | None
    """One value a row, NaN where there is none. None: one value a gap between chunks, see gaps.py."""
    of: Literal["ok", "sent"] = "ok"
    """Whose rows count: those answered in full, or all that were sent."""

    @property
    def can_fail(self) -> bool:
        """Whether a failed request may count as +inf here: the latencies of a request."""
        return self.name in ("ttft", "ttft_service", "tpot", "e2e", "e2e_service", "ntpot")


def _since(later: NDArray[np.int64], earlier: NDArray[np.int64]) -> Column:
    """Seconds between two times of the records."""
    return np.where((later == MISSING) | (earlier == MISSING), np.nan, (later - earlier) / NS)


def stages_of(column: NDArray[np.int16]) -> list[int]:
    """The stages that occur in a column of them, from the first on."""
    stages: list[int] = np.flatnonzero(np.bincount(column)).tolist()
    return stages


def start(rows: Columns) -> NDArray[np.int64]:
    """Where a latency begins."""
    return np.where(rows["open_loop"] != 0, rows["intended"], rows["sent"])


def _known(column: NDArray[Any]) -> Column:
    return np.where(column < 0, np.nan, column.astype(np.float64))


def _at_least(column: NDArray[Any], least: int) -> Column:
    """The counts that are `least` or more, NaN for the others: fit to divide by."""
    return np.where(column < least, np.nan, column.astype(np.float64))


def ttft(rows: Columns) -> Column:
    return _since(rows["first_token"], start(rows))


def ttft_service(rows: Columns) -> Column:
    return _since(rows["first_token"], rows["sent"])


def tpot(rows: Columns) -> Column:
    return _since(rows["last_token"], rows["first_token"]) / (_at_least(rows["n_out"], 2) - 1)


def e2e(rows: Columns) -> Column:
    return _since(rows["done"], start(rows))


def e2e_service(rows: Columns) -> Column:
    return _since(rows["done"], rows["sent"])


def ntpot(rows: Columns) -> Column:
    return e2e(rows) / _at_least(rows["n_out"], 1)


def lag(rows: Columns) -> Column:
    return _since(rows["sent"], rows["intended"])


def client_lag(rows: Columns) -> Column:
    return lag(rows) - rows["held"] / NS


def read_delay(rows: Columns) -> Column:
    return _known(rows["read_delay"]) / NS


def queue(rows: Columns) -> Column:
    return _known(rows["queue"]) / NS


def compute(rows: Columns) -> Column:
    return _known(rows["compute"]) / NS


def network(rows: Columns) -> Column:
    return e2e_service(rows) - queue(rows) - compute(rows)


def tokens_per_chunk(rows: Columns) -> Column:
    return _known(rows["n_out"]) / _at_least(rows["chunk_count"], 1)


def _count_of(name: str) -> Callable[[Columns], Column]:
    return lambda rows: _known(rows[name])


METRICS = {
    metric.name: metric
    for metric in (
        Metric("ttft", "s", "time to first token: first token - intended (closed loop: - sent)", ttft),
        Metric("ttft_service", "s", "time to first token from the send: first token - sent", ttft_service),
        Metric("itl", "s", "inter-token latency: each gap between consecutive chunks of one answer", None),
        Metric("tpot", "s", "time per output token after the first: (last token - first token) / (tokens - 1)", tpot),
        Metric("e2e", "s", "end to end: last byte of the answer - intended (closed loop: - sent)", e2e),
        Metric("e2e_service", "s", "end to end from the send: last byte of the answer - sent", e2e_service),
        Metric("ntpot", "s", "normalised time per output token: e2e / tokens", ntpot),
        Metric("lag", "s", "how late a request was sent: sent - intended, of all that were sent", lag, "sent"),
        Metric("client_lag", "s", "the part of lag that the client is to blame for: lag less waiting for the cap or for a connection", client_lag, "sent"),
        Metric("read_delay", "s", "the longest that bytes of an answer lay in the socket unread (their stamp is the kernel's all the same)", read_delay),
        Metric("queue", "s", "how long a request waited in the server, where that says it of each request", queue),
        Metric("compute", "s", "how long the server worked on a request, where it says so of each", compute),
        Metric("network", "s", "the rest: end to end from the send, less queue and compute", network),
        Metric("tokens_per_chunk", "tokens/chunk", "output tokens of an answer / its chunks", tokens_per_chunk),
        Metric("input_tokens", "tokens", "tokens of the prompt", _count_of("n_in")),
        Metric("output_tokens", "tokens", "tokens of the answer", _count_of("n_out")),
        Metric("cached_tokens", "tokens", "prompt tokens that the server had cached, where it says", _count_of("cached")),
        Metric("reasoning_tokens", "tokens", "output tokens spent on reasoning, where the server says", _count_of("reasoning")),
    )
}  # fmt: skip
"""In the order in which reports print them."""

RATES = {
    "requests": "requests completed per second within the window; in open loop from when the first responses have come until the last send",
    "output_tokens": "output tokens of the requests completed within the window, a second",
    "input_tokens": "prompt tokens of the requests completed within the window, a second",
    "total_tokens": "prompt and output tokens of the requests completed within the window, a second",
    "inferences": "requests completed within the window times the batch size, a second; null where there are no batches",
    "offered": "requests sent per second, from the first send within the window to the last",
}
"""The window: from its first intended instant (t=0 where no warm-up is left out) to its last answer's end (the first
intended instant of the cool-down, where one is left out). Of a stage that ended by being stable: its stable windows. In open
loop the rates leave out the edges: they count from the first send plus the p90 of the end-to-end time of the first tenth
of the requests until the last send, if that is at least half of the time in which requests were sent."""
