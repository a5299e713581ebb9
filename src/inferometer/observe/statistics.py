"""An observer that reads a KServe server's statistics (Triton's and others') before, between and after the stages.

Servers count from their start, so what a stage took is a difference. The end of a stage is noticed within a fraction of a
second, and requests in flight at that time are counted in the stage in which they end: a stage's figures are averages, not
exact sums.

A server may count a request only after it has sent the response. So when nothing is in flight, before the first stage and
after the last, the statistics are read until they have not changed for a while.

Two URLs may lead to one server, whose statistics must then count once. No two servers have spent the same number of
nanoseconds: URLs that report the same while nothing changes, before the first stage and after the last, are one server. When it
cannot be decided, they count as two: a server that counts twice doubles the requests and leaves the means as they are, while
a server mistaken for another would be missing from the means.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from inferometer.errors import UserError
from inferometer.observe.observer import Observer
from inferometer.probe import kserve
from inferometer.probe.connect import Peer
from inferometer.records import Spent, StageStatistics
from inferometer.series import Columns, TimeSeries
from inferometer.timing.clock import now
from inferometer.wire.kserve.control import SPENT_FIELDS, ModelStatistics, NotOffered, difference

SOURCE = "kserve"

UNSEEN = "the stage began and ended between two readings of the statistics"
NOT_IN_TIME = "the server's statistics were not read in time"

_Reading = tuple[ModelStatistics, ...]
"""What one peer reported at one time."""
_ReadingPair = tuple[list[_Reading], list[_Reading]]
"""What all peers reported twice in a row."""

_READ_EVERY_S = 0.02
_UNCHANGED_S = 0.06
_UNCHANGED_READINGS = 3
"""At least this many equal readings in a row: if this process or the server stalls, a single reading may be outdated."""
_READ_FOR_S = 0.5
"""Then take what there is: other clients may be using the server."""


class _Mark(NamedTuple):
    """The statistics at one time, by peer, or why they are missing."""

    at: int
    readings: list[_Reading] | str


class StatisticsWatch(Observer):
    """Reads a model's statistics at the start, whenever a stage begins, and at the end."""

    def __init__(self, peers: list[Peer], headers: Mapping[str, str], model: str, version: str) -> None:
        self._peers = peers
        self._headers = headers
        self._model = (model, version)
        self._pairs: list[_ReadingPair] = []
        self._marks: list[_Mark] = []
        self._stage = 0
        self._has_ended = False

    def start(self) -> None:
        """Read the statistics from before the first request."""
        self._marks.append(_Mark(now(), self._read_until_unchanged()))

    def mark(self, stage: int) -> None:
        """Note the end of the stage before `stage`. If stages were skipped, the times at which they ended are not known."""
        self._marks += [_Mark(now(), UNSEEN)] * (stage - self._stage - 1)
        self._stage = stage
        self._marks.append(_Mark(now(), self._read()))

    def end(self) -> Sequence[TimeSeries]:
        """Read the statistics from after the last request, which include what the server still did for cancelled ones."""
        self._marks.append(_Mark(now(), self._read_until_unchanged()))
        self._has_ended = True
        return self._series()

    def by_stage(self, stages: int | None = None) -> tuple[tuple[StageStatistics | None, ...], tuple[str, ...]]:
        """Return the statistics of each stage, None if they are missing, and why ("" if they are not).

        `stages` is the number of stages that the run went through; None means those that were seen to begin.
        """
        marks = [mark.readings for mark in self._marks]
        if not self._has_ended:
            marks += [NOT_IN_TIME] * (1 if marks else 2)
        unseen = 0 if stages is None else stages + 1 - len(marks)
        marks[-1:-1] = [UNSEEN] * unseen
        servers = self._servers()
        found = [_between(before, after, servers) for before, after in pairwise(marks)]
        statistics = tuple(one if isinstance(one, StageStatistics) else None for one in found)
        return statistics, tuple(one if isinstance(one, str) else "" for one in found)

    def _read(self) -> list[_Reading] | str:
        """Read every peer, or say why that failed: a server without statistics is measured all the same."""
        try:
            return [kserve.statistics(peer, self._headers, *self._model) for peer in self._peers]
        except NotOffered:
            return "the server offers no statistics"
        except UserError as error:
            return f"the server's statistics could not be read: {error.line}"

    def _read_until_unchanged(self) -> list[_Reading] | str:
        begin = since = time.monotonic()
        found, equal, count = self._read(), 1, 1
        if isinstance(found, str):
            return found
        pair: _ReadingPair | None = None
        while time.monotonic() - since < _UNCHANGED_S or equal < _UNCHANGED_READINGS:
            if time.monotonic() - begin >= _READ_FOR_S and count >= _UNCHANGED_READINGS:
                break
            time.sleep(_READ_EVERY_S)
            latest = self._read()
            if isinstance(latest, str):
                break
            count, equal, pair = count + 1, equal + 1, (found, latest)
            if latest != found:
                found, since, equal = latest, time.monotonic(), 1
        self._pairs += [pair] if pair else []
        return found

    def _series(self) -> Sequence[TimeSeries]:
        """All counters at all marks."""
        columns = Columns(SOURCE)
        for at, readings in self._marks:
            for peer, reading in zip(self._peers, () if isinstance(readings, str) else readings, strict=False):
                for model in reading:
                    labels = {"model": model.name, "version": model.version, "url": peer.target.url}
                    for name, value in _counters(model).items():
                        columns.append(name, labels, at, value)
        return columns.series()

    def _servers(self) -> list[int]:
        """Return the index of one peer for each server."""
        found: list[int] = []
        for peer in range(len(self._peers)):
            if not any(self._is_one_server(other, peer) for other in found):
                found.append(peer)
        return found

    def _is_one_server(self, peer: int, other: int) -> bool:
        unchanged = [
            (later[peer], later[other])
            for earlier, later in self._pairs
            if earlier[peer] == later[peer] and earlier[other] == later[other]
        ]
        return all(one == another for one, another in unchanged) and any(_has_nanoseconds(one) for one, _ in unchanged)


def _counters(model: ModelStatistics) -> dict[str, float]:
    """Name what the server counts: `inference_count`, `queue_count`, `queue_ns` ..."""
    counters: dict[str, float] = {"inference_count": model.inference_count, "execution_count": model.execution_count}
    for name in SPENT_FIELDS:
        spent: Spent = getattr(model, name)
        counters |= {f"{name}_count": spent.count, f"{name}_ns": spent.ns}
    return counters


def _has_nanoseconds(reading: _Reading) -> bool:
    """Whether a sum is finer than a microsecond. Servers that count nothing, or in coarser units, may well report the same."""
    return any(getattr(model, name).ns % 1000 for model in reading for name in SPENT_FIELDS)


def _between(before: list[_Reading] | str, after: list[_Reading] | str, servers: list[int]) -> StageStatistics | str:
    if isinstance(before, str) or isinstance(after, str):
        return before if isinstance(before, str) else str(after)
    try:
        changes = tuple(model for peer in servers for model in difference(before[peer], after[peer]))
    except UserError as error:  # the server was restarted in between
        return error.what
    return StageStatistics(
        inferences=sum(model.inference_count for model in changes),
        executions=sum(model.execution_count for model in changes),
        **{name: _sum(changes, name) for name in SPENT_FIELDS},
    )


def _sum(changes: tuple[ModelStatistics, ...], name: str) -> Spent:
    each = [getattr(model, name) for model in changes]
    return Spent(sum(one.count for one in each), sum(one.ns for one in each))
