"""What the live view shows, computed from the snapshots of a run: rates, percentiles, and the course of the run so far."""

from collections import deque
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inferometer.records import ROW
from inferometer.units import NS

WINDOW = 5.0
"""Seconds that rates and percentiles look back."""
_MAX_ROWS = 2_000
_MAX_STREAMS = 100
_MAX_VALUES = 20_000
_BUCKETS = 48
_FIRST_STEP = 1.0

Rows = np.ndarray[tuple[int], np.dtype[np.void]]
Latencies = NDArray[np.int64]


class RecentRate:
    """How fast a counter rose in the last seconds. The time before it rises for the first time does not count."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque([(0.0, 0)])

    def add(self, at: float, count: int) -> None:
        if at <= self._counts[-1][0]:
            return
        if not count:
            self._counts.clear()
        self._counts.append((at, count))
        while len(self._counts) > 2 and self._counts[0][0] < at - WINDOW:
            self._counts.popleft()

    @property
    def per_second(self) -> float:
        (first, before), (last, after) = self._counts[0], self._counts[-1]
        return (after - before) / (last - first) if last > first else 0.0


class RecentRows:
    """The requests that ended in the last seconds."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._rows: deque[tuple[float, Rows]] = deque()

    def add(self, at: float, rows: Rows) -> None:
        if len(rows):
            self._rows.append((at, rows))
        while self._rows and self._rows[0][0] < at - WINDOW:
            self._rows.popleft()

    def percentiles(self, peeks: NDArray[np.int64]) -> dict[str, tuple[float, float]]:
        """p50 and p99 in seconds, by metric. If no stream has ended, they are those of `peeks`, streams in flight."""
        rows = np.concatenate([rows for _, rows in self._rows])[-_MAX_ROWS:] if self._rows else np.zeros(0, ROW)
        sent = rows["sent"] > 0
        first_tokens, gaps = time_to_first_token(rows), self._gaps(rows)
        values = {
            "TTFT": first_tokens if len(first_tokens) else peeks[:, 0],
            "ITL": gaps if len(gaps) else peeks[:, 1][peeks[:, 1] > 0],
            "end to end": end_to_end(rows),
            "lag": (rows["sent"] - rows["intended"])[sent],
        }
        return {name: _p50_p99(found) for name, found in values.items() if len(found)}

    def _gaps(self, rows: Rows) -> Latencies:
        """Gaps between the chunks of the latest responses, from the shards' files."""
        found = []
        for row in rows[rows["chunk_count"] > 1][-_MAX_STREAMS:]:
            path = self._spool / f"{row['shard']}.arrivals"
            if not path.exists():  # the shard stores its chunks elsewhere
                continue
            found.append(np.diff(np.fromfile(path, "<i8", row["chunk_count"], offset=int(row["chunk_start"]) * 8)))
        return np.concatenate(found) if found else np.zeros(0, np.int64)


class History:
    """The course of the whole run in at most _BUCKETS steps of equal length, which double when they do not suffice."""

    def __init__(self) -> None:
        self.is_streamed = False
        """Whether `p99` is that of TTFT; otherwise it is that of the end-to-end time."""
        self._step = _FIRST_STEP
        self._completed = [0.0] * _BUCKETS
        self._p99: list[float | None] = [None] * _BUCKETS
        self._current: list[Latencies] = []
        self._last = (0.0, 0)

    def add(self, at: float, completed: int, rows: Rows) -> None:
        """Add what happened since the last call; `at` is in seconds since the start, `completed` counts from it too."""
        (before, count), self._last = self._last, (at, completed)
        if at <= before:
            return
        while at >= self._step * _BUCKETS:
            self._double()
        first, last = int(before / self._step), int(at / self._step)
        for bucket in range(first, last + 1):
            overlap = min(at, (bucket + 1) * self._step) - max(before, bucket * self._step)
            self._completed[bucket] += (completed - count) * overlap / (at - before)
        if last > first:
            self._close(first)
        self._note_latencies(rows)

    @property
    def rates(self) -> list[float]:
        """Requests completed per second in each step that is over."""
        return [count / self._step for count in self._completed[: self._closed]]

    @property
    def p99(self) -> list[float | None]:
        """The p99 in seconds in each step that is over; None where nothing ended."""
        return self._p99[: self._closed]

    @property
    def _closed(self) -> int:
        return int(self._last[0] / self._step)

    def _note_latencies(self, rows: Rows) -> None:
        found = time_to_first_token(rows)
        if len(found) and not self.is_streamed:
            self.is_streamed, self._current, self._p99 = True, [], [None] * _BUCKETS
        found = found if self.is_streamed else end_to_end(rows)
        if len(found):
            self._current.append(found[-_MAX_VALUES:])

    def _close(self, bucket: int) -> None:
        if self._current:
            self._p99[bucket] = _p50_p99(np.concatenate(self._current))[1]
        self._current = []

    def _double(self) -> None:
        """Merge steps in pairs. The p99 of two steps is at most the larger of theirs, which is good enough for a look."""
        pairs = [(self._p99[index], self._p99[index + 1]) for index in range(0, _BUCKETS, 2)]
        merged = [max((one for one in pair if one is not None), default=None) for pair in pairs]
        self._p99 = [*merged, *[None] * (_BUCKETS - len(merged))]
        counts = [sum(self._completed[index : index + 2]) for index in range(0, _BUCKETS, 2)]
        self._completed = [*counts, *[0.0] * (_BUCKETS - len(counts))]
        self._step *= 2


def time_to_first_token(rows: Rows) -> Latencies:
    """ns, of the requests that had a first token."""
    return np.asarray((rows["first_token"] - _start(rows))[(rows["first_token"] > 0) & (rows["sent"] > 0)])


def end_to_end(rows: Rows) -> Latencies:
    """ns, of the requests that succeeded."""
    return np.asarray((rows["done"] - _start(rows))[(rows["sent"] > 0) & (rows["failure"] == 0)])


def _start(rows: Rows) -> Latencies:
    return np.where(rows["open_loop"] > 0, rows["intended"], rows["sent"])


def _p50_p99(values: Latencies) -> tuple[float, float]:
    low, high = np.percentile(values, (50, 99))
    return float(low) / NS, float(high) / NS
