"""Raw samples that were read from a Prometheus server piece by piece, put together as if we had scraped the servers."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from inferometer.observe.prometheus_api import Result
from inferometer.series import SeriesRow
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

    name: str
    labels: dict[str, str]
    target: str
    newest: int = -1
    changes: list[tuple[int, float]] = []
    """The first value, and each that differs from the one before."""


class RawSamples:
    """All series, from the last scrape before `begin` on. Samples that are added again are ignored."""

    def __init__(self, url: str, begin: int) -> None:
        """`url` stands for the server in series without the label `instance`."""
        self._url = url
        self._begin = begin
        self._series: dict[tuple[tuple[str, str], ...], _Samples] = {}
        self._scrapes: dict[str, dict[int, float]] = {}
        """By target and time: whether the scrape succeeded, by Prometheus' own series `up`."""
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
        for one, target, times, before in pieces:
            # Older values do not matter, and one that the last scrape before the run no longer had must not count as present.
            start = before - (before > 0 and times[before - 1] == last_before[target])
            self._extend(one, target, times, start)

    def _extend(self, one: Result, target: str, times: list[int], start: int) -> None:
        labels = {"exported_target" if label == "target" else label: value for label, value in one.metric.items()}
        name = labels.pop("__name__", "")
        key = tuple(sorted(one.metric.items()))
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Samples(name, labels | {"target": target}, target)
        start = max(start, bisect_right(times, series.newest))
        new = [(at, float(text)) for at, (_, text) in zip(times[start:], one.values[start:], strict=True)]
        if not new:
            return
        series.newest = new[-1][0]
        if name == UP:
            self._scrapes.setdefault(target, {}).update(new)
        else:
            series.changes += _changes(series.changes[-1:], new)
        if name not in _OF_ANY_PROCESS:
            self._times.setdefault(target, set()).update(times[start:])

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

    def rows(self) -> Iterator[SeriesRow]:
        """Return all changes and scrapes of the targets that were scraped after `begin`. The rows' times are ms since 1970 by the
        server's clock."""
        targets = self.newest()
        for target in targets:
            scrapes = self._scrapes.get(target) or dict.fromkeys(sorted(self._times[target]), 1.0)
            yield from (SeriesRow(SOURCE, UP, {"target": target}, at, value) for at, value in scrapes.items())
        for series in self._series.values():
            if series.target in targets:
                yield from (SeriesRow(SOURCE, series.name, series.labels, at, value) for at, value in series.changes)


def _changes(before: list[tuple[int, float]], new: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the samples whose value differs from the one before, the first of which is in `before`, if there is one."""
    found = [] if before else [new[0]]
    for (_, earlier), (at, value) in pairwise(before + new):
        if value != earlier and not (math.isnan(value) and math.isnan(earlier)):
            found.append((at, value))
    return found
