"""Circuit breakers: decide, while a run is in progress, whether a limit of `abort.on` is exceeded.

`Breakers.look` gets the requests that have ended since the last look, and how old those in flight are. It has no clock and reads no
files. Per limit it keeps counts and the values of the window, so that a look costs as much as its new rows, however many there were.

Latency limits count requests that succeeded. Those in flight that are already over the limit of `ttft` (no first token yet) or `e2e`
count as well: a server that hangs completes nothing more.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.abort_expression import Kind, Limit
from inferometer.analysis.binomial import is_above
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.percentiles import PERCENTILES
from inferometer.records import MISSING, Columns, Trip
from inferometer.units import NS, format_number, format_seconds

FEWEST = 20
"""Minimum number of requests in a window, once that many have ended: a share or a percentile of fewer says little."""
_CHANCE = 0.001
"""Probability with which a share may exceed its limit by chance before the window is full for the first time."""

Ages = NDArray[np.int64]
"""Pairs: ns since a request in flight started, and 1 if its first token has arrived."""
NO_AGES: Ages = np.zeros((0, 2), np.int64)


class Exceeded(msgspec.Struct, frozen=True):
    """A measured value that exceeds its limit, and what it was measured over."""

    value: float
    over: str


class Gauge(Protocol):
    """Measures what one limit is about."""

    def add(self, rows: Columns, elapsed: float) -> None:
        """Count requests that have ended, in the order in which they did."""

    def exceeded(self, elapsed: float, ages: Ages) -> Exceeded | None: ...


class Breakers:
    """Watches the limits of a run. Requests that end within the first `grace` seconds do not count."""

    def __init__(self, limits: Sequence[Limit], window: float, grace: float, ends: str = "run") -> None:
        self._limits, self._window, self._grace, self._ends = limits, window, grace, ends
        self._stage = -1
        self._since = 0.0
        self._gauges: list[tuple[Limit, Gauge]] = []
        self._is_open = False

    def look(self, rows: Columns, elapsed: float, stage: int, ages: Ages = NO_AGES) -> Trip | None:
        """Return the limit that is exceeded, once for the run or once for each stage that it ends.

        `rows` are requests that have ended since the last look, with times since t=0, without those that the client cancelled or
        dropped. Only those of the stage in progress count.
        """
        if stage != self._stage and not (self._is_open and self._ends == "run"):
            self._stage, self._since, self._is_open = stage, elapsed, False
            since = max(elapsed, self._grace)
            self._gauges = [(limit, GAUGES[limit.kind](limit, self._window, since)) for limit in self._limits]
        if self._is_open or elapsed < self._grace:
            return None
        own = rows[(rows["stage"] == stage) & (rows["done"] >= self._grace * NS)] if len(rows) else rows
        if len(own):
            own = own[np.argsort(own["done"], kind="stable")]
        ages = ages[ages[:, 0] <= (elapsed - self._since) * NS]  # not those of an earlier stage
        for limit, gauge in self._gauges:
            if len(own):
                gauge.add(own, elapsed)
            if (found := gauge.exceeded(elapsed, ages)) is not None:
                self._is_open = True
                return Trip(str(limit), self._ends, stage, elapsed, found.value, _reason(limit, found))
        return None


def _reason(limit: Limit, found: Exceeded) -> str:
    threshold = limit.threshold
    per_unit = threshold.number / threshold.value
    unit = f" {threshold.unit}" if threshold.unit else ""
    if limit.kind == "failure_rate" and not unit:
        per_unit, unit = 100.0, " %"
    value, bound = (f"{format_number(each * per_unit, 3)}{unit}" for each in (found.value, threshold.value))
    return f"{limit.subject} {value} {limit.sign} {bound} {found.over}".rstrip()


# --- what the limits are about ---------------------------------------------------------------------------------------


class _Look(msgspec.Struct, frozen=True):
    """What one look has added to a window."""

    begin: float
    """When the look before was, in seconds since t=0."""
    end: float
    count: int
    hits: int
    values: NDArray[np.float64]


class _Window:
    """The looks of the last seconds, and of at least the last FEWEST requests."""

    def __init__(self, seconds: float, since: float) -> None:
        self._seconds, self._since, self._last = seconds, since, since
        self._looks: deque[_Look] = deque()
        self.count = self.hits = 0

    def add(self, elapsed: float, count: int, hits: int, values: NDArray[np.float64]) -> None:
        self._looks.append(_Look(self._last, elapsed, count, hits, values))
        self._last = elapsed
        self.count += count
        self.hits += hits

    def forget(self, elapsed: float) -> None:
        """Leave out looks that are older than the window, as long as enough requests remain."""
        while self._looks and self._looks[0].end <= elapsed - self._seconds:
            if self.count - self._looks[0].count < FEWEST:
                return
            oldest = self._looks.popleft()
            self.count -= oldest.count
            self.hits -= oldest.hits

    def is_clear(self, elapsed: float, hits: int, count: int, share: float) -> bool:
        """Whether the hits may count as more than this share: the window is full, or their number is hardly chance."""
        return elapsed >= self._since + self._seconds or is_above(hits, count, share, _CHANCE)

    @property
    def values(self) -> NDArray[np.float64]:
        return np.concatenate([np.zeros(0), *(look.values for look in self._looks)])

    def length(self, elapsed: float) -> str:
        begin = self._looks[0].begin if self._looks else self._last
        seconds = elapsed - begin
        if seconds >= 0.9 * self._seconds and seconds <= 1.1 * self._seconds:
            seconds = self._seconds  # looks are not exactly as far apart as the window is long
        return f"over the last {format_seconds(seconds)}"


_NO_VALUES = np.zeros(0)


class _FailureRate:
    """The share of requests that failed."""

    def __init__(self, limit: Limit, window: float, since: float) -> None:
        self._limit, self._window = limit, _Window(window, since)

    def add(self, rows: Columns, elapsed: float) -> None:
        self._window.add(elapsed, len(rows), int(np.count_nonzero(rows["failure"])), _NO_VALUES)

    def exceeded(self, elapsed: float, ages: Ages) -> Exceeded | None:
        window = self._window
        window.forget(elapsed)
        if window.count < FEWEST or not self._limit.is_exceeded(window.hits / window.count):
            return None
        if not window.is_clear(elapsed, window.hits, window.count, self._limit.threshold.value):
            return None
        over = f"{window.length(elapsed)} ({window.hits:,} of {window.count:,} requests)"
        return Exceeded(window.hits / window.count, over)


class _ConsecutiveFailures:
    """The longest unbroken series of failures."""

    def __init__(self, limit: Limit, window: float, since: float) -> None:
        self._limit = limit
        self._current = self._longest = 0

    def add(self, rows: Columns, elapsed: float) -> None:
        succeeded = np.flatnonzero(rows["failure"] == 0)
        lengths = np.diff(np.concatenate([[-1 - self._current], succeeded, [len(rows)]])) - 1
        self._longest = max(self._longest, int(lengths.max()))
        self._current = int(lengths[-1])

    def exceeded(self, elapsed: float, ages: Ages) -> Exceeded | None:
        return Exceeded(self._longest, "") if self._limit.is_exceeded(self._longest) else None


class _Statistic:
    """A percentile or the mean of a latency."""

    def __init__(self, limit: Limit, window: float, since: float) -> None:
        self._limit, self._window = limit, _Window(window, since)

    def add(self, rows: Columns, elapsed: float) -> None:
        values = _values(self._limit, rows)
        if len(values):
            self._window.add(elapsed, len(values), _count_over(self._limit, values), values)

    def exceeded(self, elapsed: float, ages: Ages) -> Exceeded | None:
        window = self._window
        window.forget(elapsed)
        waiting = _ages_over(self._limit, ages)
        count, over = window.count + len(waiting), window.hits + len(waiting)
        if count < FEWEST or not over:
            return None
        thousandths = PERCENTILES.get(self._limit.statistic)
        share = 1.0 if thousandths is None else 1 - thousandths / 1000  # a mean waits until the window is full
        if not window.is_clear(elapsed, over, count, share):
            return None
        if thousandths is not None and count - over >= _rank(count, thousandths):
            return None
        values = np.concatenate([window.values, waiting])
        if thousandths is None:
            value = math.fsum(values.tolist()) / count
        else:
            value = float(np.partition(values, _rank(count, thousandths) - 1)[_rank(count, thousandths) - 1])
        if not self._limit.is_exceeded(value):
            return None
        in_flight = f", {len(waiting):,} of them still in flight" if len(waiting) else ""
        return Exceeded(value, f"{window.length(elapsed)} ({over:,} of {count:,} requests are above{in_flight})")


class _Request:
    """The latency of a single request."""

    def __init__(self, limit: Limit, window: float, since: float) -> None:
        self._limit = limit
        self._largest: float | None = None

    def add(self, rows: Columns, elapsed: float) -> None:
        values = _values(self._limit, rows)
        if len(values):
            self._largest = float(values.max())

    def exceeded(self, elapsed: float, ages: Ages) -> Exceeded | None:
        if self._largest is not None and self._limit.is_exceeded(self._largest):
            return Exceeded(self._largest, "in one request")
        waiting = _ages_over(self._limit, ages)
        return Exceeded(float(waiting.max()), "for a request that is still in flight") if len(waiting) else None


GAUGES: dict[Kind, Callable[[Limit, float, float], Gauge]] = {
    "failure_rate": _FailureRate,
    "consecutive_failures": _ConsecutiveFailures,
    "statistic": _Statistic,
    "request": _Request,
}
"""Each takes the limit, the window in seconds, and from when on requests count."""


def _values(limit: Limit, rows: Columns) -> NDArray[np.float64]:
    """The latencies of the requests that the metric counts, in seconds."""
    metric = METRICS[limit.metric]
    assert metric.values is not None  # `parse_limit` accepts only metrics with one value per request
    counted = rows[rows["failure"] == 0] if metric.of == "ok" else rows[rows["sent"] != MISSING]
    values = metric.values(counted)
    return values[~np.isnan(values)]


def _count_over(limit: Limit, values: NDArray[np.float64]) -> int:
    bound = limit.threshold.value
    return int(np.count_nonzero(values >= bound if limit.sign == ">=" else values > bound))


def _ages_over(limit: Limit, ages: Ages) -> NDArray[np.float64]:
    """Seconds since the start of requests in flight, of those whose latency will exceed the limit for certain."""
    if limit.metric not in ("ttft", "e2e"):
        return _NO_VALUES
    started = ages[ages[:, 1] == 0] if limit.metric == "ttft" else ages
    seconds = started[:, 0] / NS
    return seconds[seconds > limit.threshold.value]


def _rank(count: int, thousandths: int) -> int:
    """Rank of a percentile among this many values, from 1."""
    return max(-(-count * thousandths // 1000), 1)
