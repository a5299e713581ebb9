"""Raw samples that were read from a Prometheus server piece by piece, put together as if we had scraped the servers.

Samples do not say when a series has left the page. But all samples of a scrape have the same time, and so has the sample of `up`: a series
without a sample at the time of a later scrape that succeeded is gone, and NaN is stored. It belongs to the series `up` whose labels it
has, too: one instance may be scraped by several jobs, at different times.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec
import numpy as np

from inferometer.observe.prometheus_api import Result
from inferometer.series import Column, TimeSeries
from inferometer.server_metrics.families import PROCESS_START
from inferometer.server_metrics.figures import SOURCE, UP

_OF_ANY_PROCESS = (UP, PROCESS_START)
_LATE_BY = 120_000
"""ms by which a sample may arrive late; later ones are not read."""
_GONE_AFTER = 3
"""Scrape intervals after which a server that is not scraped any more is not waited for."""
_SCRAPE_TAKES = 1000
"""ms that may pass from the time of a scrape until its samples can be read."""
_FEW = 10
"""Scrapes that the scrape interval is taken from."""
_IN_DOUBT = 1000
"""ms between two scrapes as long as there has been only one."""


class _Samples(msgspec.Struct):
    """One series. Times are ms since 1970 by the Prometheus server's clock."""

    target: str
    column: Column
    """The first value, and each that differs from the one before."""
    scrapes: list[int]
    """When the series' target was scraped with success; empty if that is not known."""
    newest: int = -1

    def extend(self, new: Iterable[tuple[int, float]]) -> None:
        for at, value in new:
            gone = self.gone()
            if gone is not None and gone < at:
                self.column.append_change(gone, math.nan)
            self.column.append_change(at, value)
            self.newest = at

    def gone(self) -> int | None:
        """Return the first scrape after the newest sample. Samples that bring along their own times, which are not those of scrapes, tell
        nothing."""
        after = bisect_right(self.scrapes, self.newest)
        is_scraped = after > 0 and self.scrapes[after - 1] == self.newest
        return self.scrapes[after] if is_scraped and after < len(self.scrapes) else None


class RawSamples:
    """All series, from the last scrape before `begin` on. Samples that are added again are ignored."""

    def __init__(self, url: str, begin: int) -> None:
        """`url` stands for the server in series without the label `instance`."""
        self._url = url
        self._begin = begin
        self._series: dict[tuple[tuple[str, str], ...], _Samples] = {}
        self._scrapes: dict[str, dict[int, float]] = {}
        """By target and time: whether the scrape succeeded, by Prometheus' own series `up`."""
        self._successes: dict[str, dict[frozenset[tuple[str, str]], list[int]]] = {}
        """Times of the scrapes that succeeded, in order, by target and by the labels of the series `up`."""
        self._times: dict[str, set[int]] = {}
        """The times of samples, by target. Only model servers are in it: every exporter has the series of _OF_ANY_PROCESS."""
        self._recent: dict[str, set[int]] = {}
        """Recent scrapes, by target; also before `begin`, for the scrape interval."""

    def add(self, found: Iterable[Result]) -> None:
        pieces = []
        last_before: dict[str, int] = {}
        for one in found:
            target = one.metric.get("instance") or self._url
            times = [round(at * 1000) for at, _ in one.values]
            self._recent.setdefault(target, set()).update(times[-_FEW:])
            before = bisect_right(times, self._begin)
            if before:
                last_before[target] = max(last_before.get(target, 0), times[before - 1])
            pieces.append((one, target, times, before))
        for one, target, times, before in sorted(pieces, key=lambda piece: piece[0].metric.get("__name__") != UP):
            # Older values do not matter, and one that the last scrape before the run no longer had must not count as present.
            start = before - (before > 0 and times[before - 1] == last_before[target])
            self._extend(one, target, times, start)

    def _extend(self, one: Result, target: str, times: list[int], start: int) -> None:
        key = tuple(sorted(one.metric.items()))
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._new_series(one.metric, target)
        start = max(start, bisect_right(times, series.newest))
        new = [(at, float(text)) for at, (_, text) in zip(times[start:], one.values[start:], strict=True)]
        if not new:
            return
        name = one.metric.get("__name__", "")
        if name == UP:
            series.newest = new[-1][0]
            self._scrapes.setdefault(target, {}).update(new)
            series.scrapes += [at for at, value in new if value]
        else:
            series.extend(new)
        if name not in _OF_ANY_PROCESS:
            self._times.setdefault(target, set()).update(times[start:])

    def _new_series(self, metric: dict[str, str], target: str) -> _Samples:
        labels = {"exported_target" if label == "target" else label: value for label, value in metric.items()}
        name = labels.pop("__name__", "")
        own = frozenset(item for item in metric.items() if item[0] != "__name__")
        successes = self._successes.setdefault(target, {})
        if name == UP:
            successes[own] = []
        scraped_by = max((up for up in successes if up <= own), key=len, default=None)
        scrapes = [] if scraped_by is None else successes[scraped_by]
        return _Samples(target, Column(SOURCE, name, labels | {"target": target}), scrapes)

    def newest(self) -> dict[str, int]:
        """Return the time of the latest scrape of each target that was scraped after `begin`."""
        return {target: at for target, at in self._latest().items() if at > self._begin}

    def _latest(self) -> dict[str, int]:
        return {target: max(times | self._scrapes.get(target, {}).keys()) for target, times in self._times.items()}

    def failing(self) -> list[str]:
        """Return the targets whose latest scrape failed."""
        return [target for target, scrapes in self._scrapes.items() if not scrapes[max(scrapes)]]

    def complete_until(self) -> int:
        """Return the time up to which no more samples are expected; 0: at the start."""
        newest = self.newest().values()
        return max(min(newest), max(newest) - _LATE_BY) if newest else 0

    def next_scrapes(self, since: int, give_up: int, at: int) -> list[int]:
        """Return when the next scrape of each target is expected that has not been scraped after `since`, without those that are not worth
        waiting for: not before `give_up`, or overdue, or of a server that has not been scraped for a while. `at` is the present."""
        expected = []
        for target, newest in self._latest().items():
            interval = self._interval(target)
            due = newest + interval
            last_wait = min(since + interval * 3 // 2 + _SCRAPE_TAKES, give_up)
            if newest <= since <= newest + _GONE_AFTER * interval and max(due, at) < last_wait:
                expected.append(due)
        return expected

    def _interval(self, target: str) -> int:
        times = sorted(self._recent[target])[-_FEW:]
        gaps = sorted(later - earlier for earlier, later in pairwise(times))
        return gaps[len(gaps) // 2] if gaps else _IN_DOUBT

    def series(self) -> Iterator[TimeSeries]:
        """Return all changes and scrapes of the targets that were scraped after `begin`. Their times are ms since 1970 by the server's
        clock. Nothing can be added any more."""
        targets = self.newest()
        for target in targets:
            scrapes = self._scrapes.get(target) or dict.fromkeys(sorted(self._times[target]), 1.0)
            at, value = np.fromiter(scrapes, np.int64), np.fromiter(scrapes.values(), np.float64)
            yield TimeSeries(SOURCE, UP, {"target": target}, at, value)
        for each in self._series.values():
            if each.target in targets and each.column.at:
                if (gone := each.gone()) is not None:
                    each.column.append_change(gone, math.nan)
                yield each.column.series()
