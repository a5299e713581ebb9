"""The rates of a stage, free of its edges: they count over the time in which the load was on.

At the start of a stage nothing has been completed yet, and at its end nothing more is sent while the last responses arrive.
Dividing by all of that time would report fewer requests per second than the server handled.

Open loop: completions from the first send plus the p90 of the end-to-end time of the first tenth of the requests (by then the
pipeline is full) to the last send. If less than half of the stage remains, there are no rates. Of sessions: from the p90 of the
length of the first tenth of them to the last first turn, because later turns are still sent after the load has ended.

Closed loop: from when all users have started to the last send, all users are busy. The rates count over that time, without
the p90 of the users' first end-to-end times if at least half of it remains: at first, only the shortest of the requests have
ended. A request that crosses an edge counts by the share of its own time that is within: users may complete their requests
at the same moments, and whether such a moment is just inside or just outside must not matter. (In open loop this would be
wrong: the requests in a growing queue would count as partly done.)

A stage that ended when it was stable: completions in its stable windows, as perf_analyzer counts them.

Output tokens count when their chunk arrives. A response's chunks are scaled to its number of output tokens, because the number
of tokens per chunk is not always known.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import blocks, exact, settings, stability
from inferometer.analysis.metrics import decoded_tokens, e2e_service
from inferometer.analysis.overload import EARLY, FLOOD, Overload, by_session, fill_time, stage_length
from inferometer.analysis.window import COOLDOWN, START, STEADY, WARMUP
from inferometer.records import MISSING, PHASES, Columns, Run, StagePlan
from inferometer.units import NS, format_seconds

Settled = dict[int, stability.Stability]
"""By stage number, for stages that end when they are stable."""
Interval = tuple[float | None, float | None]
_HALF = 0.499
"""The least share of a stage that has to remain; a little less than half, so that rounding does not decide."""
_MILLI = 1000
_LEAST_BLOCKS = 4
"""Blocks of time of a closed loop, if few responses per user fit into it."""
_FINE = 1 << 20
"""Parts of a block of time: instants are rounded to them, so that sums are exact."""


class Throughput(msgspec.Struct, frozen=True):
    """Rates per second over `span`; null if they are not known."""

    requests: float | None = None
    output_tokens: float | None = None
    input_tokens: float | None = None
    total_tokens: float | None = None
    inferences: float | None = None
    offered: float | None = None
    in_flight: float | None = None
    little: float | None = None
    decode: float | None = None
    span: float | None = None
    """Seconds that the rates count over: the window without the edges of the stage."""
    ci: dict[str, Interval] = {}
    """95 % confidence intervals of the rates and of `in_flight`."""
    reason: str = ""
    """Why there are no rates."""


class MeasuredWindow(msgspec.Struct, frozen=True):
    """The part of the run that counts, in seconds since t=0, and the number of requests in each phase."""

    start: float
    end: float
    span: float
    """From start to end, without the time between the windows of stages that ended when they were stable."""
    requests: dict[str, int]


class _Span(msgspec.Struct, frozen=True):
    """The time that a stage's rates count over, in ns."""

    start: int = 0
    end: int = 0
    partly: bool = False
    """Whether requests that cross an edge count by the share of their time within."""
    reason: str = ""


class Spans(msgspec.Struct, frozen=True):
    """For each stage, its window and the time that its rates count over."""

    windows: tuple[MeasuredWindow, ...]
    spans: tuple[_Span, ...]
    tokens: dict[int, float]
    """By the index of its row: the share of its tokens that arrived within, for a request whose chunks cross an edge."""

    def part(self, rows: NDArray[np.int64]) -> "Spans":
        """The same for a run that has only these rows (ascending)."""
        known = np.array(list(self.tokens), np.int64)
        index = np.searchsorted(rows, known)
        own = index < len(rows)
        own[own] = rows[index[own]] == known[own]
        shares = {int(at): self.tokens[int(row)] for at, row in zip(index[own], known[own], strict=True)}
        return msgspec.structs.replace(self, tokens=shares)


def stage_rates(
    run: Run, settled: Settled, overloads: Sequence[Overload]
) -> tuple[tuple[MeasuredWindow, Throughput], ...]:
    """The window and the rates of each stage."""
    return rates(run, measured_spans(run, settled, overloads))


def rates(run: Run, found: Spans) -> tuple[tuple[MeasuredWindow, Throughput], ...]:
    """The window and the rates of each stage, over the given spans."""
    stage = run.records.rows["stage"]
    each = enumerate(zip(found.windows, found.spans, strict=True))
    return tuple((window, _rates(run, stage == number, span, found.tokens)) for number, (window, span) in each)


def measured_spans(run: Run, settled: Settled, overloads: Sequence[Overload]) -> Spans:
    """The window of each stage, and the time that its rates count over."""
    stages = [run.records.rows["stage"] == stage for stage in range(len(run.manifest.plan))]
    windows = [_window(run, stage, mask, settled) for stage, mask in enumerate(stages)]
    spans = [
        _span(run.records.rows[mask], run.manifest.plan[stage], windows[stage], settled.get(stage), overloads[stage])
        for stage, mask in enumerate(stages)
    ]
    return Spans(tuple(windows), tuple(spans), _tokens_within(run, spans))


def together(stages: Sequence[tuple[MeasuredWindow, Throughput]]) -> tuple[MeasuredWindow, Throughput]:
    """The window and the rates of a whole run: totals over the times that its stages count over."""
    if len(stages) == 1:
        return stages[0]
    windows, rates = [window for window, _ in stages], [rates for _, rates in stages]
    counted = [window for window in windows if window.span] or windows[:1]
    window = MeasuredWindow(
        min(each.start for each in counted),
        max(each.end for each in counted),
        math.fsum(each.span for each in windows),
        {
            name: sum(each.requests.get(name, 0) for each in windows)
            for name in PHASES
            if any(name in each.requests for each in windows)
        },
    )
    offered = [(each.offered, window.span) for window, each in stages if each.offered is not None]
    found = Throughput(offered=_average(offered))
    if reasons := [f"stage {number}: {each.reason}" for number, each in enumerate(rates, 1) if each.reason]:
        return window, msgspec.structs.replace(found, reason="; ".join(reasons))
    totals = {}
    for name in ("requests", "output_tokens", "input_tokens", "total_tokens", "inferences", "in_flight"):
        values = [(getattr(each, name), each.span or 0.0) for each in rates]
        totals[name] = None if any(value is None for value, _ in values) else _average(values)
    return window, msgspec.structs.replace(found, span=math.fsum(each.span or 0.0 for each in rates), **totals)


def _average(values: Sequence[tuple[float, float]]) -> float | None:
    """The mean of rates, each with the seconds that it counts over."""
    seconds = math.fsum(span for _, span in values)
    return math.fsum(rate * span for rate, span in values) / seconds if seconds else None


# --- what the rates count over ---------------------------------------------------------------------------------------


def _window(run: Run, stage: int, mask: NDArray[np.bool_], settled: Settled) -> MeasuredWindow:
    """From the first intended instant (t=0 if there is no warm-up) until the last response has ended, or the cool-down begins."""
    rows, phase = run.records.rows, run.records.phase
    sizes = {name: int((mask & (phase == number)).sum()) for number, name in enumerate(PHASES)}
    if not sizes[PHASES[START]]:
        del sizes[PHASES[START]]  # only closed loops have it
    ended = rows[mask & (phase == STEADY) & (rows["done"] != MISSING)]
    if not len(ended):
        return MeasuredWindow(0.0, 0.0, 0.0, sizes)
    intended = ended["intended"]
    warms_up = sizes[PHASES[WARMUP]] or PHASES[START] in sizes
    start = 0 if stage == 0 and not warms_up else int(intended.min())
    tail = rows[mask & (phase == COOLDOWN) & (rows["intended"] >= intended.max())]
    end = int(tail["intended"].min()) if len(tail) else int(ended["done"].max())
    stable = settled.get(stage, stability.Stability()).settled
    start, end = stable if stable is not None else (start, end)
    return MeasuredWindow(start / NS, end / NS, max(end - start, 0) / NS, sizes)


def _span(
    rows: Columns, plan: StagePlan, window: MeasuredWindow, stable: stability.Stability | None, overload: Overload
) -> _Span:
    start, end = round(window.start * NS), round(window.end * NS)
    sent = rows["sent"]
    sent = sent[sent != MISSING]
    if not window.span or not len(sent):
        return _Span(reason="no request in the window ended")
    if stable is not None and stable.settled is not None:
        return _Span(*stable.settled)
    if plan.open:
        return _open_span(rows, plan, start, end, overload)
    return _closed_span(rows, sent, plan, start, end)


def _open_span(rows: Columns, plan: StagePlan, start: int, end: int, overload: Overload) -> _Span:
    units, good = rows, rows[rows["failure"] == 0]
    if not plan.users:  # otherwise, the plan has an instant for each turn
        units, good = by_session(units), by_session(good)
    sent = units["sent"]
    sent = sent[sent != MISSING]
    if not len(sent):
        return _Span(reason="no session was started")
    first, begin, finish = int(sent.min()), max(start, int(sent.min())), min(end, int(sent.max()))
    count = int(np.count_nonzero((sent >= begin) & (sent <= finish)))
    length = stage_length(begin, finish, count)
    fill = fill_time(good) or 0
    for share in (EARLY, FLOOD) if overload.status == "overloaded" else (EARLY,):
        full = max(begin, first + (fill_time(good, share) or 0))
        if finish > full and finish - full + length - (finish - begin) >= _HALF * length:
            return _Span(full, finish)
    what = "responses" if units is rows else "sessions"
    if not length:
        return _Span(reason="fewer than two requests were sent")
    took, lasted, needs = (format_seconds(time / NS) for time in (fill, length, 4 * fill))
    return _Span(
        reason=f"the first {what} took {took} and requests were sent for {lasted}, of which less than half remains without "
        f"the edges: run for at least {needs}"
    )


def _closed_span(rows: Columns, sent: NDArray[np.int64], plan: StagePlan, start: int, end: int) -> _Span:
    busy = busy_span(sent, plan) or (0, 0)
    begin, finish = max(busy[0], start), min(busy[1], end)
    fill = fill_time(rows, plan.concurrency / len(rows)) or 0
    # Each send within the span follows a response. With fewer of them than users, only those count who were quick.
    for full in (max(begin, busy[0] + fill), begin):
        responses = np.count_nonzero((sent > full) & (sent <= finish))
        if responses >= plan.concurrency and finish > full and finish - full >= _HALF * (finish - begin):
            return _Span(full, finish, partly=True)
    remedy = f"use at least {4 * plan.concurrency:,} requests"
    if plan.duration and not plan.requests:
        remedy = (
            f"use a load.duration of at least {format_seconds(plan.ramp_up + max(4 * fill / NS, 2 * plan.duration))}"
        )
    return _Span(reason=f"fewer than two responses per user after all users had started: {remedy}")


def busy_span(sent: NDArray[np.int64], plan: StagePlan) -> tuple[int, int] | None:
    """The time in which all users of a closed loop were at work; None if there is none.

    It starts when the planned number has been sent and the ramp-up is over. After the last send, completed requests are no
    longer replaced and the number in flight has to fall. The same is true after the end of the stage, when users only finish
    their sequences.
    """
    if len(sent) <= plan.concurrency:
        return None
    first = int(sent.min())
    begin = max(int(np.partition(sent, plan.concurrency - 1)[plan.concurrency - 1]), first + round(plan.ramp_up * NS))
    end = int(sent.max())
    if plan.duration:
        end = min(end, first + round(plan.duration * NS))
    return (begin, end) if end > begin else None


# --- rates -----------------------------------------------------------------------------------------------------------


def _rates(run: Run, mask: NDArray[np.bool_], span: _Span, tokens: dict[int, float]) -> Throughput:
    rows, phase = run.records.rows, run.records.phase
    counted = rows[mask & (phase == STEADY)]
    found = Throughput(offered=offered(counted), decode=_decode(counted))
    if span.reason:
        return msgspec.structs.replace(found, reason=span.reason)
    if not mask.any():  # a traffic class or a replica that the stage has not
        return msgspec.structs.replace(found, reason="no request was sent")
    if (counted["open_loop"] != 0).any() and (
        counted["turn"] > 0
    ).any():  # later turns are sent after the load has ended, too
        found = msgspec.structs.replace(
            found, offered=offered(counted[(counted["sent"] >= span.start) & (counted["sent"] <= span.end)])
        )
    seconds = (span.end - span.start) / NS
    chosen = np.flatnonzero(_overlapping(rows, span) & mask)
    in_flight, in_flight_ci = _time_within(rows[chosen], span), _interval_in_flight(rows[chosen], span)
    chosen = chosen[rows["failure"][chosen] == 0]
    own = rows[chosen]
    weights = _weights(own, span)
    requests = float(exact.total(weights)) / seconds
    tokens_in = _total(own["n_in"], weights)
    arrived = _arrived(own, chosen, weights, span, tokens)
    received = None if tokens_in is None else np.where(weights > 0, own["n_in"] * weights, 0.0)
    tokens_out = None if arrived is None else float(exact.total(arrived))
    both = None if tokens_in is None or tokens_out is None else tokens_in + tokens_out
    batch = settings.number(run.manifest.server, "batch")
    counts = {
        "requests": weights,
        "output_tokens": arrived,
        "input_tokens": received,
        "total_tokens": None if arrived is None or received is None else arrived + received,
        "inferences": None if batch is None else weights * batch,
    }
    known = {name: count for name, count in counts.items() if count is not None}
    number = _closed_blocks(own, span)
    intervals = _spread_intervals(own, known, span, number) if number else _intervals(own, known, span)
    return msgspec.structs.replace(
        found,
        requests=requests,
        output_tokens=None if tokens_out is None else tokens_out / seconds,
        input_tokens=None if tokens_in is None else tokens_in / seconds,
        total_tokens=None if both is None else both / seconds,
        inferences=None if batch is None else requests * batch,
        in_flight=in_flight / (span.end - span.start),
        little=_little(_time_within(own, span) / (span.end - span.start), requests, counted),
        span=seconds,
        ci=intervals | {"in_flight": in_flight_ci},
    )


def _overlapping(rows: Columns, span: _Span) -> NDArray[np.bool_]:
    """Requests that were in flight during the span. One that ends exactly when the span starts was not.

    In closed loop, its end starts the next request.
    """
    was: NDArray[np.bool_] = (rows["sent"] != MISSING) & (rows["sent"] <= span.end) & (rows["done"] > span.start)
    return was


def _time_within(rows: Columns, span: _Span) -> int:
    """Sum of the times that requests were in flight within the span, in ns."""
    return int((np.minimum(rows["done"], span.end) - np.maximum(rows["sent"], span.start)).sum())


def _weights(rows: Columns, span: _Span) -> NDArray[np.float64]:
    """What each request that was in flight during the span counts."""
    sent, done = rows["sent"], rows["done"]
    if not span.partly:
        return (done <= span.end).astype(np.float64)
    within = np.minimum(done, span.end) - np.maximum(sent, span.start)
    return np.where(done > sent, within / np.maximum(done - sent, 1), 1.0)


def _total(tokens: NDArray[np.int32], weights: NDArray[np.float64]) -> float | None:
    """Sum of the token counts; None if one is not known, such as that of a later turn without the server's usage."""
    counts = weights > 0
    if (tokens[counts] < 0).any():
        return None
    return float(exact.total(tokens[counts] * weights[counts])) if counts.any() else 0.0


def _little(in_flight: float, rate: float, counted: Columns) -> float | None:
    """Mean number in flight / (rate x mean time in flight): by Little's law 1 in a steady state. Successful requests only."""
    times = e2e_service(counted[counted["failure"] == 0])
    times = times[~np.isnan(times)]
    expected = rate * exact.mean(times) if len(times) else 0.0
    return in_flight / expected if expected else None


def _decode(counted: Columns) -> float | None:
    """Output tokens per second of decoding, per request in flight: tokens after the first chunk / time after the first chunk."""
    good = counted[(counted["failure"] == 0) & (counted["chunk_count"] > 1)]
    tokens, time = decoded_tokens(good), good["last_token"] - good["first_token"]
    known = ~np.isnan(tokens) & (good["last_token"] != MISSING)
    seconds = int(time[known].sum()) / NS
    return float(exact.total(tokens[known])) / seconds if seconds > 0 else None


def _intervals(rows: Columns, counts: Mapping[str, NDArray[np.float64]], span: _Span) -> dict[str, Interval]:
    """The intervals of rates, from how much was completed in each block of time."""
    at = np.clip(rows["done"], span.start, span.end)
    ends = {name: blocks.rate(at, _milli(count), span.start, span.end)[1:] for name, count in counts.items()}
    return {name: _scaled(low_and_high, _MILLI) for name, low_and_high in ends.items()}


def _closed_blocks(rows: Columns, span: _Span) -> int:
    """The number of blocks of a closed loop: each at least two mean end-to-end times long, because shorter ones share most of their
    requests and resemble each other. 0 for an open loop, and for a closed one with fewer than _LEAST_BLOCKS responses per user."""
    busy = int((rows["done"] - rows["sent"]).sum())
    responses = (span.end - span.start) * len(rows) // busy if busy else 0
    if not span.partly or responses < _LEAST_BLOCKS:
        return 0
    return min(max(responses // 2, _LEAST_BLOCKS), blocks.BLOCKS)


def _spread_intervals(
    rows: Columns, counts: Mapping[str, NDArray[np.float64]], span: _Span, number: int
) -> dict[str, Interval]:
    """The intervals of a closed loop's rates: a request counts in each block by the share of its own time in it.

    If requests counted when they end, users who complete theirs at the same moments would make a steady rate look unsteady: whether
    one or two such moments are in a block is chance.
    """
    start, end = np.maximum(rows["sent"], span.start), np.minimum(rows["done"], span.end)
    end = np.maximum(end, start + 1)
    length = span.end - span.start
    edges = [*(span.start + length * block // number for block in range(number)), span.end + 1]
    totals: dict[str, list[int]] = {name: [] for name in counts}
    for first, last in pairwise(edges):
        share = np.clip(np.minimum(end, last) - np.maximum(start, first), 0, None) / (end - start)
        for name, count in counts.items():
            totals[name].append(int(_milli(count * share).sum()))  # a sum of whole numbers is exact below 2**53
    return {name: _scaled(blocks.total_interval(own), _MILLI * length / NS) for name, own in totals.items()}


def _milli(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.rint(counts * _MILLI)


def _scaled(ends: Interval, unit: float) -> Interval:
    low, high = ends
    return None if low is None else low / unit, None if high is None else high / unit


def _interval_in_flight(rows: Columns, span: _Span) -> Interval:
    """The interval of the mean number in flight, from its mean in each block; `rows` were in flight during the span."""
    length = span.end - span.start

    def enter(at: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """How many instants each block has, and how much of the block remains after each: the sum, in units of 1 / _FINE."""
        position = (np.clip(at, span.start, span.end) - span.start) * (blocks.BLOCKS / length)
        block = np.minimum(position.astype(np.int64), blocks.BLOCKS - 1)
        rest = np.rint((block + 1 - position) * _FINE)
        return np.bincount(block, minlength=blocks.BLOCKS), np.bincount(block, rest, minlength=blocks.BLOCKS)

    (started, after_start), (ended, after_end) = enter(rows["sent"]), enter(rows["done"])
    change = started - ended
    means = (np.cumsum(change) - change) * _FINE + after_start - after_end
    middles = span.start + (np.arange(blocks.BLOCKS) * 2 + 1) * length // (2 * blocks.BLOCKS)
    _, low, high = blocks.rate(middles, means, span.start, span.end)
    unit = length / NS / (blocks.BLOCKS * _FINE)
    return None if low is None else low * unit, None if high is None else high * unit


def offered(rows: Columns) -> float | None:
    """Requests sent per second, from the first send to the last; None for fewer than two."""
    sent = rows["sent"]
    sent = sent[sent != MISSING]
    span = int(sent.max() - sent.min()) / NS if len(sent) else 0.0
    return (len(sent) - 1) / span if span else None


# --- output tokens by arrival ----------------------------------------------------------------------------------------


def _arrived(
    rows: Columns, index: NDArray[np.int64], weights: NDArray[np.float64], span: _Span, within: dict[int, float]
) -> NDArray[np.float64] | None:
    """Output tokens of each request that arrived during the span; None if a number of tokens is not known.

    `within` has the share of the tokens for requests (by the `index` of their row) whose chunks cross an edge of the span.
    """
    tokens, inside = rows["n_out"], weights.copy()
    streamed = rows["chunk_count"] > 0
    inside[streamed] = 1.0
    crossing = streamed & _crosses(rows, span)
    inside[crossing] = [within.get(row, 0.0) for row in index[crossing].tolist()]
    if (tokens[inside > 0] < 0).any():
        return None
    return np.where(inside > 0, tokens * inside, 0.0)


def _crosses(rows: Columns, span: _Span) -> NDArray[np.bool_]:
    crosses: NDArray[np.bool_] = (rows["first_token"] <= span.start) | (rows["last_token"] > span.end)
    return crosses


def _tokens_within(run: Run, spans: Sequence[_Span]) -> dict[int, float]:
    """For each request whose chunks cross an edge of its stage's span: the share of its tokens that arrived within."""
    rows = run.records.rows
    own, edges = [], []
    for stage, span in enumerate(spans):
        if not span.reason:
            crossing = _overlapping(rows, span) & _crosses(rows, span) & (rows["chunk_count"] > 0)
            found = np.flatnonzero(crossing & (rows["stage"] == stage) & (rows["failure"] == 0))
            own.append(found)
            edges.append(np.tile((span.start, span.end), (len(found), 1)))
    if not sum(map(len, own)):
        return {}
    index, bounds = np.concatenate(own), np.concatenate(edges)
    order = np.argsort(rows["chunk_start"][index], kind="stable")
    index, bounds = index[order], bounds[order]
    start = rows["chunk_start"][index]
    end = start + rows["chunk_count"][index]
    total, inside = np.zeros(len(index)), np.zeros(len(index))
    position = 0
    for piece in run.chunks():
        limit = position + len(piece.arrival)
        here = range(int(np.searchsorted(end, position, "right")), int(np.searchsorted(start, limit)))
        for number in here:
            part = slice(max(start[number] - position, 0), min(end[number], limit) - position)
            arrival, tokens = piece.arrival[part], piece.tokens[part]
            total[number] += int(tokens.sum(dtype=np.int64))
            kept = (arrival > bounds[number, 0]) & (arrival <= bounds[number, 1])
            inside[number] += int(tokens[kept].sum(dtype=np.int64))
        position = limit
    shares = np.divide(inside, total, out=np.zeros(len(index)), where=total > 0)
    return dict(zip(index.tolist(), shares.tolist(), strict=True))
