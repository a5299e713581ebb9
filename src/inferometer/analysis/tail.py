"""Why slow requests were slow: which cause explains how much of p99 - p50, of the time to first token and of the end-to-end time.

The time of a request is split into parts that add up to it (CAUSES; tail_parts.py). The requests at or above the p99 are compared with
those in the middle, between p40 and p60: a part that is longer than in the middle explains the difference. Parts that are shorter than
in the middle reduce the shares of all others alike. Each request of the tail counts equally, so that one extreme outlier does not decide
about all of them. The shares add up to 1; what no part explains is `unexplained`.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import exact, metrics, settings
from inferometer.analysis.percentiles import rank
from inferometer.analysis.stalls import LongGap, Stalls, find_stalls, preemptions, waiting
from inferometer.analysis.tail_parts import CAUSES, TYPICAL, Norms, Parts, norms, parts_of
from inferometer.analysis.window import STEADY
from inferometer.errors import UserError
from inferometer.records import MISSING, Columns, Run
from inferometer.series import TimeSeries
from inferometer.server_metrics.targets import SOURCE
from inferometer.units import NS, format_number, format_seconds

__all__ = ["CAUSES", "Explained", "SlowRequest", "Stall", "Step", "Tail", "TailMetric", "explain", "tails"]

METRICS = {"ttft": "TTFT", "e2e": "end-to-end time"}
FEWEST = 20
"""Requests that a stage needs for its tail to be compared with its middle."""
FLAT = 0.02, 0.001
"""A tail is not worth an explanation if p99 - p50 is at most this share of p50, or this many seconds."""
_MIDDLE = 0.4, 0.6
_MOST_IN_MIDDLE = 10_000
_SLOWEST = 3
"""How many of the slowest requests are listed, by each metric."""
_LEAST_SHARE = 0.02
"""Sentences leave out smaller shares."""

Indices = NDArray[np.int64]


_MOST_CHUNKS = 20_000_000
"""Explaining more would take longer than the rest of the report."""


class Explained(msgspec.Struct, frozen=True):
    """How much of p99 - p50 a cause explains."""

    cause: str
    """A key of CAUSES."""
    share: float
    """0 to 1."""
    seconds: float
    """share x (p99 - p50)."""
    requests: int
    """Requests of the tail for which it is the largest cause."""


class TailMetric(msgspec.Struct, frozen=True):
    """The tail of one metric, over successful requests."""

    p50: float
    p99: float
    requests: int
    """Requests in the tail: those at or above the p99."""
    causes: tuple[Explained, ...] = ()
    """The largest first; empty if there is no tail."""
    sentence: str = ""


class Step(msgspec.Struct, frozen=True):
    """A part of a request's time."""

    cause: str
    """A key of CAUSES, or `typical`: the wait for the first token that every request has."""
    seconds: float
    above: float
    """By how much it is longer than in the middle requests; negative if it is shorter."""


class Stall(msgspec.Struct, frozen=True):
    """A long gap between two chunks."""

    at: float
    """Seconds since the request's latency counts."""
    seconds: float
    shared: float
    """The share of it during which at least half of the open streams stalled."""
    cause: str


class SlowRequest(msgspec.Struct, frozen=True):
    """The timeline of one request; all times are in seconds."""

    id: int
    stage: int
    start: float
    """When its latency starts to count, since t=0."""
    ttft: float | None
    e2e: float | None
    input_tokens: int | None
    output_tokens: int | None
    main_cause: str
    steps: tuple[Step, ...]
    """In the order of time: until it is sent, until its first token, until its end."""
    stalls: tuple[Stall, ...] = ()
    failure: str | None = None


class Tail(msgspec.Struct, frozen=True):
    """Why the slow requests of a stage, or of the run, were slow."""

    metrics: dict[str, TailMetric] = {}
    """`ttft` and `e2e`, if they have values."""
    slowest: tuple[SlowRequest, ...] = ()
    """The slowest requests by TTFT, then those by end-to-end time that are not among them."""
    reason: str = ""
    """Why there is no explanation."""


def tails(run: Run) -> tuple[Tail, ...]:
    """Explain the tail of each stage."""
    if run.chunk_total > _MOST_CHUNKS:
        reason = f"the run has more than {_MOST_CHUNKS:,} chunks: explain single requests (--why ID)"
        return (Tail(reason=reason),) * len(run.manifest.plan)
    rows = run.records.rows
    ok = (run.records.phase == STEADY) & (rows["failure"] == 0) & (rows["sent"] != MISSING)
    own = [np.flatnonzero(ok & (rows["stage"] == stage)) for stage in range(len(run.manifest.plan))]
    chosen = [_slowest(rows, each) for each in own]
    context = _Context(run, ok, [row for each in chosen for row in each])
    return tuple(context.tail(each, slow) for each, slow in zip(own, chosen, strict=True))


def explain(run: Run, id: int) -> SlowRequest:
    """The timeline of one request, by its id. Raises UserError when there is none, or it was never sent."""
    rows = run.records.rows
    found = np.flatnonzero(rows["id"] == id)
    if not len(found):
        ids = f"ids are from {rows['id'].min()} to {rows['id'].max()}" if len(rows) else "the run has no requests"
        raise UserError(f"--why {id}: the run has no request with this id", f"{ids}; --csv writes all requests")
    row = int(found[0])
    if rows["sent"][row] == MISSING:
        failure = run.records.failures[rows["failure"][row] - 1].code if rows["failure"][row] else "not sent"
        raise UserError(f"--why {id}: this request was never sent ({failure})", "choose one that was sent")
    ok = (run.records.phase == STEADY) & (rows["failure"] == 0) & (rows["sent"] != MISSING)
    same = ok & (rows["stage"] == rows["stage"][row])
    return _Context(run, ok, [row]).timeline(row, np.flatnonzero(same))


def _slowest(rows: Columns, own: Indices) -> list[int]:
    """The slowest rows by each metric, without repetition."""
    chosen: list[int] = []
    for name in METRICS:
        values = _values(name, rows[own])
        known = np.flatnonzero(~np.isnan(values))
        order = known[np.argsort(-values[known], kind="stable")][:_SLOWEST]
        chosen += [row for row in own[order].tolist() if row not in chosen]
    return chosen


def _values(name: str, rows: Columns) -> NDArray[np.float64]:
    return metrics.ttft(rows) if name == "ttft" else metrics.e2e(rows)


class _Context:
    """What is known about the whole run: its stalls, and what the server's metrics say."""

    def __init__(self, run: Run, ok: NDArray[np.bool_], chosen: Sequence[int]) -> None:
        series: list[TimeSeries] = [each for each in run.series() if each.source == SOURCE]
        model = str(settings.text(run.manifest, "server", "model") or "")
        self._run, self._rows = run, run.records.rows
        self._waiting = waiting(series, model)
        self._preemptions = preemptions(series, model)
        self._stalls: Stalls = find_stalls(run, ok, self._preemptions, chosen)

    def tail(self, own: Indices, slow: Sequence[int]) -> Tail:
        """The tail of the rows `own`."""
        if len(own) < FEWEST:
            return Tail(reason=f"{len(own)} successful requests are too few: it takes at least {FEWEST}")
        usual = self._norms(own)
        found = {name: each for name in METRICS if (each := self._metric(name, own, usual)) is not None}
        reference = self._reference(own, usual)
        return Tail(found, tuple(self._timeline(row, reference, usual) for row in slow))

    def timeline(self, row: int, own: Indices) -> SlowRequest:
        """The timeline of one row, compared with the middle of the rows `own` of its stage."""
        own = own if len(own) else np.array([row])
        usual = self._norms(own)
        return self._timeline(row, self._reference(own, usual), usual)

    def _reference(self, own: Indices, usual: Norms) -> dict[str, float]:
        """The parts of the end-to-end time in the middle."""
        return _means(self._parts("e2e", self._middle("e2e", own), usual))

    def _norms(self, own: Indices) -> Norms:
        return norms(self._rows, own, self._stalls)

    def _parts(self, name: str, indices: Indices, usual: Norms) -> Parts:
        return parts_of(name, self._rows, indices, self._stalls, self._waiting, usual)

    def _middle(self, name: str, own: Indices) -> Indices:
        """The rows in the middle; at most _MOST_IN_MIDDLE of them."""
        values = _values(name, self._rows[own])
        known = own[~np.isnan(values)]
        order = known[np.argsort(values[~np.isnan(values)], kind="stable")]
        first, last = (int(share * len(order)) for share in _MIDDLE)
        middle = order[first : last + 1]
        return middle[:: -(-len(middle) // _MOST_IN_MIDDLE)] if len(middle) else own[:0]

    def _metric(self, name: str, own: Indices, usual: Norms) -> TailMetric | None:
        values = _values(name, self._rows[own])
        own, values = own[~np.isnan(values)], values[~np.isnan(values)]
        if len(own) < FEWEST:
            return None
        ordered = np.sort(values)
        p50, p99 = (float(ordered[rank(each, len(ordered)) - 1]) for each in (500, 990))
        tail = own[values >= p99]
        excess, label = p99 - p50, METRICS[name]
        if excess <= max(FLAT[0] * p50, FLAT[1]):
            return TailMetric(
                p50,
                p99,
                len(tail),
                (),
                f"p99 {label} is {format_seconds(excess)} above the median: there is no tail to explain",
            )
        parts = self._parts(name, tail, usual)
        shares = _shares(parts, _means(self._parts(name, self._middle(name, own), usual)))
        mean = {cause: exact.mean(share) for cause, share in shares.items()}
        largest = np.bincount(np.argmax(np.array(list(shares.values())), axis=0), minlength=len(shares)).tolist()
        causes = tuple(
            Explained(cause, mean[cause], mean[cause] * excess, count)
            for cause, count in sorted(zip(shares, largest, strict=True), key=lambda each: -mean[each[0]])
            if mean[cause] > 0
        )
        return TailMetric(p50, p99, len(tail), causes, self._sentence(label, excess, causes, tail))

    def _sentence(self, label: str, excess: float, causes: Iterable[Explained], tail: Indices) -> str:
        words = [
            f"{100 * each.share:.0f} % {CAUSES[each.cause].phrase}{self._evidence(each.cause, tail)}"
            for each in causes
            if each.share >= _LEAST_SHARE
        ]
        return f"p99 {label} is {format_seconds(excess)} above the median: {', '.join(words)}"

    def _evidence(self, cause: str, tail: Indices) -> str:
        """What the server's metrics say about the tail."""
        if cause == "queue":
            rows = self._rows[tail]
            mean = self._waiting.during(
                rows["sent"], np.where(rows["first_token"] == MISSING, rows["done"], rows["first_token"])
            )
            if len(known := mean[~np.isnan(mean)]):
                return f" ({format_number(exact.mean(known), 2)} waiting on average)"
        return ""

    def _timeline(self, row: int, reference: dict[str, float], usual: Norms) -> SlowRequest:
        one = self._rows[np.array([row])]
        parts = self._parts("e2e", np.array([row]), usual)
        own = {cause: float(part[0]) for cause, part in parts.items()}
        steps = tuple(
            Step(cause, seconds, seconds - reference[cause])
            for cause, seconds in own.items()
            if abs(seconds) >= 1e-9 or abs(reference[cause]) >= 1e-6
        )
        start = int(metrics.start(one)[0])
        causes = [step for step in steps if step.cause != TYPICAL and step.above > 0]
        number = int(one["failure"][0])
        return SlowRequest(
            id=int(one["id"][0]),
            stage=int(one["stage"][0]),
            start=start / NS,
            ttft=_known(metrics.ttft(one)),
            e2e=_known(metrics.e2e(one)),
            input_tokens=_count(one["n_in"]),
            output_tokens=_count(one["n_out"]),
            main_cause=max(causes, key=lambda step: step.above).cause if causes else "unexplained",
            steps=steps,
            stalls=tuple(self._stall(gap, start, one["replica"]) for gap in self._stalls.listed.get(row, [])),
            failure=self._run.records.failures[number - 1].code if number else None,
        )

    def _stall(self, gap: LongGap, start: int, replica: NDArray[np.int16]) -> Stall:
        ends = replica, np.array([gap.start]), np.array([gap.end])
        server, client = (float(each.overlap(*ends)[0]) for each in (self._stalls.server, self._stalls.client))
        length = gap.end - gap.start
        is_preempted = any(begin <= gap.end and end >= gap.start for begin, end in self._preemptions)
        alone = "preemption" if is_preempted else "own_stall"
        cause = "client" if 2 * client > length else "server_stall" if 2 * server > length else alone
        return Stall((gap.start - start) / NS, length / NS, min((server + client) / length, 1.0), cause)


def _means(parts: Parts) -> dict[str, float]:
    return {cause: exact.mean(part) if len(part) else 0.0 for cause, part in parts.items()}


def _shares(parts: Parts, reference: dict[str, float]) -> Parts:
    """For each request of the tail, the share of each cause in what it took longer than the middle."""
    above = {cause: np.maximum(part - reference[cause], 0.0) for cause, part in parts.items()}
    above["unexplained"] = above["unexplained"] + above.pop(TYPICAL)
    total = sum(above.values(), start=np.zeros(1))
    return {cause: np.where(total > 0, part / np.where(total > 0, total, 1.0), 0.0) for cause, part in above.items()}


def _known(values: NDArray[np.float64]) -> float | None:
    return None if np.isnan(values[0]) else float(values[0])


def _count(column: NDArray[np.int32]) -> int | None:
    return None if column[0] < 0 else int(column[0])
