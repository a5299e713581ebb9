"""The rates of a run or a stage, and the window that they count over.

Rates of an open loop agree when the server keeps up: requests offered, and requests completed without the edges. At the start
of a stage nothing has been completed yet, and at its end nothing more is sent while the last responses arrive. Dividing by all
of that time would report fewer requests per second than the server handled.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import settings, stability
from inferometer.analysis.window import COOLDOWN, STEADY, WARMUP
from inferometer.records import MISSING, PHASES, Columns, Run
from inferometer.units import NS

Mask = NDArray[np.bool_]
Settled = dict[int, stability.Stability]
"""By stage number, for stages that end when they are stable."""
_EARLY = 10
"""The first tenth of the requests shows how long the pipeline takes to fill."""
_FILLED = 0.9
"""The percentile of their time; with the median, the rate would be too low when times vary."""


class Throughput(msgspec.Struct, frozen=True):
    """Rates per second over the window; null if the window has no length."""

    requests: float | None = None
    output_tokens: float | None = None
    input_tokens: float | None = None
    total_tokens: float | None = None
    inferences: float | None = None
    offered: float | None = None


class MeasuredWindow(msgspec.Struct, frozen=True):
    """The part of the run that counts, in seconds since t=0, and the number of requests in each phase."""

    start: float
    end: float
    span: float
    """From start to end, without the time between the windows of stages that ended when they were stable."""
    requests: dict[str, int]


def throughput(run: Run, mask: Mask, stages: range, settled: Settled) -> tuple[MeasuredWindow, Throughput]:
    """The window and the rates of the rows of `mask`, which are those of `stages`.

    Requests that complete within the window count, even if they were sent in the warm-up: that way neither edge of the window
    biases the rate. A request that completes exactly when the window begins does not count, because all of its work was
    before the window: in closed loop, its end starts the next request.
    """
    rows, phase = run.records.rows, run.records.phase
    sizes = {name: int((mask & (phase == number)).sum()) for number, name in enumerate(PHASES)}
    ended = rows[mask & (phase == STEADY) & (rows["done"] != MISSING)]
    if not len(ended):
        return MeasuredWindow(0.0, 0.0, 0.0, sizes), Throughput()
    start = 0 if stages.start == 0 and not sizes[PHASES[WARMUP]] else int(ended["intended"].min())
    tail = rows[mask & (phase == COOLDOWN) & (rows["intended"] >= ended["intended"].max())]
    end = int(tail["intended"].min()) if len(tail) else int(ended["done"].max())
    start, end = _stable_edges(settled, stages, start, end)
    span = max(end - start, 0) / NS
    window = MeasuredWindow(start / NS, end / NS, span, sizes)
    if not span:
        return window, Throughput()
    if all(plan.open and not plan.stable for plan in run.manifest.plan[stages.start : stages.stop]):
        start, end = without_edges(rows[mask], start, end)
        span = (end - start) / NS
    inside = rows[mask & (rows["failure"] == 0) & (rows["done"] > start) & (rows["done"] <= end)]
    tokens_in, tokens_out = _total(inside["n_in"]), _total(inside["n_out"])
    both = None if tokens_in is None or tokens_out is None else tokens_in + tokens_out
    batch = settings.number(run.manifest.server, "batch")
    inferences = None if batch is None else len(inside) * batch
    rates = (None if total is None else total / span for total in (tokens_out, tokens_in, both, inferences))
    found = Throughput(len(inside) / span, *rates)
    return window, msgspec.structs.replace(found, offered=offered(rows[mask & (phase == STEADY)]))


def _stable_edges(settled: Settled, stages: range, start: int, end: int) -> tuple[int, int]:
    """The edges of the window; a stage that ended when it was stable counts from its first stable window to its last."""
    first, last = (settled.get(stage, stability.Stability()).settled for stage in (stages.start, stages.stop - 1))
    return (first[0] if first else start), (last[1] if last else end)


def together(
    window: MeasuredWindow, stages: Sequence[tuple[MeasuredWindow, Throughput]]
) -> tuple[MeasuredWindow, Throughput]:
    """The whole run's window and rates, from the stages' windows only: what came before a stage was stable does not count."""
    span = math.fsum(window.span for window, _ in stages)
    rates = {}
    for name in Throughput.__struct_fields__:
        known = [(getattr(rates, name), window.span) for window, rates in stages]
        done = [rate * seconds for rate, seconds in known if rate is not None]
        rates[name] = math.fsum(done) / span if done and span else None
    return msgspec.structs.replace(window, span=span), Throughput(**rates)


def _total(tokens: NDArray[np.int32]) -> int | None:
    """Sum of the token counts; None if one is not known, such as that of a later turn without the server's usage."""
    return int(tokens.sum(dtype=np.int64)) if (tokens >= 0).all() else None


def offered(rows: Columns) -> float | None:
    """Requests sent per second, from the first send to the last; None for fewer than two."""
    sent = rows["sent"]
    sent = sent[sent != MISSING]
    span = int(sent.max() - sent.min()) / NS if len(sent) else 0.0
    return (len(sent) - 1) / span if span else None


def without_edges(rows: Columns, start: int, end: int) -> tuple[int, int]:
    """Narrow the window from `start` to `end` to the time in which the pipeline was full and requests were still sent.

    If that is less than half of the time in which requests were sent, the window stays as it is.
    """
    order = np.argsort(np.where(rows["sent"] == MISSING, np.iinfo(np.int64).max, rows["sent"]), kind="stable")
    order = order[: int((rows["sent"] != MISSING).sum())]
    early = rows[order[: max(len(order) // _EARLY, 1)]]
    times = np.sort((early["done"] - early["sent"])[early["failure"] == 0])
    if not len(times):
        return start, end
    first, last = (int(rows["sent"][order[index]]) for index in (0, -1))
    full = max(start, first + int(times[int(_FILLED * (len(times) - 1))]))
    finish = min(end, last)
    return (full, finish) if finish > full and 2 * (finish - full) >= last - first else (start, end)
