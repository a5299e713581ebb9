"""What a KServe server says that it spent its time on: its statistics before, between the stages, and after.

Servers count from their start, so what a stage took is a difference. A stage's end is seen within a fraction of a second, and
requests that are under way then are counted where they end: a stage's figures are averages, not exact sums.

A server counts a request when it is rid of it, which may be after its answer has come. So where nothing is under way, at the
start and at the end, it is asked until it has said the same for a while.

Two URLs may lead to one server, whose statistics then count once. No two servers have spent the same nanoseconds: places
that say the same while they stand still, at the start and at the end, are one. What cannot be told counts as two: a server that
counts twice has twice the requests and the same means, while one that is taken for another is left out of them.
"""

import time
from collections.abc import Mapping

from inferometer.errors import UserError
from inferometer.probe import kserve
from inferometer.probe.connect import Peer
from inferometer.records import Spent, StageStatistics
from inferometer.wire.kserve.control import ModelStatistics, NotOffered, difference

_Said = tuple[ModelStatistics, ...]
_Mark = list[_Said]
"""What each of the places said at one time."""
_Pair = tuple[_Mark, _Mark]
"""What they said twice in a row."""

UNSEEN = "it went by between two looks at the server"

_LOOK_S = 0.02
_STILL_S = 0.06
_STILL_ANSWERS = 3
"""Alike, in a row: for if this process or the server stands still for a while, one answer may be old when that is over."""
_PATIENCE_S = 0.5
"""For others may use the server too."""


class StatisticsWatch:
    """Asks for a model's statistics at its making, at every `mark`, and at the `end`."""

    def __init__(self, places: list[Peer], headers: Mapping[str, str], model: str, version: str) -> None:
        self._places = places
        self._headers = headers
        self._model = (model, version)
        self._pairs: list[_Pair] = []
        self._marks: list[_Mark | str] = [self._ask_until_still()]

    def mark(self, missed: int = 0) -> None:
        """A stage has ended; so have `missed` before it, of which nobody knows when: neither can be told apart."""
        self._marks += [UNSEEN] * missed
        self._marks.append(self._ask())

    def end(self, missed: int = 0) -> None:
        """The last stage has ended, and so has all that was asked, but for what the server still does of what was given up."""
        self._marks += [UNSEEN] * missed
        self._marks.append(self._ask_until_still())

    def _ask(self) -> _Mark | str:
        """Of each place, or why not: a server that cannot say is measured all the same, and the report says so."""
        try:
            return [kserve.statistics(place, self._headers, *self._model) for place in self._places]
        except NotOffered:
            return "the server offers no statistics"
        except UserError as error:
            return f"the server's statistics could not be read: {error.line}"

    def _ask_until_still(self) -> _Mark | str:
        begin = since = time.monotonic()
        found, alike, asked = self._ask(), 1, 1
        if isinstance(found, str):
            return found
        pair: _Pair | None = None
        while time.monotonic() - since < _STILL_S or alike < _STILL_ANSWERS:
            if time.monotonic() - begin >= _PATIENCE_S and asked >= _STILL_ANSWERS:
                break
            time.sleep(_LOOK_S)
            latest = self._ask()
            if isinstance(latest, str):
                break
            asked, alike, pair = asked + 1, alike + 1, (found, latest)
            if latest != found:
                found, since, alike = latest, time.monotonic(), 1
        self._pairs += [pair] if pair else []
        return found

    def told(self) -> tuple[tuple[StageStatistics | None, ...], tuple[str, ...]]:
        """What happened from mark to mark, None where the server did not say; and why it did not, empty where it did."""
        servers = self._servers()
        found = [_between(*pair, servers) for pair in zip(self._marks, self._marks[1:], strict=False)]
        stages = tuple(one if isinstance(one, StageStatistics) else None for one in found)
        return stages, tuple(one if isinstance(one, str) else "" for one in found)

    def _servers(self) -> list[int]:
        """Of the places one for each server."""
        found: list[int] = []
        for place in range(len(self._places)):
            if not any(self._is_one(other, place) for other in found):
                found.append(place)
        return found

    def _is_one(self, place: int, other: int) -> bool:
        still = [
            (later[place], later[other])
            for earlier, later in self._pairs
            if earlier[place] == later[place] and earlier[other] == later[other]
        ]
        return all(one == another for one, another in still) and any(_has_nanoseconds(one) for one, _ in still)


def _has_nanoseconds(said: _Said) -> bool:
    """Servers that have spent nothing, or that count in coarser units, may well say the same."""
    return any(getattr(one, name).ns % 1000 for one in said for name in SPENT)


def _between(before: _Mark | str, after: _Mark | str, servers: list[int]) -> StageStatistics | str:
    if isinstance(before, str) or isinstance(after, str):
        return before if isinstance(before, str) else str(after)
    try:
        changes = tuple(one for place in servers for one in difference(before[place], after[place]))
    except UserError as error:  # the server was started anew in between
        return error.what
    return StageStatistics(
        inferences=sum(one.inference_count for one in changes),
        executions=sum(one.execution_count for one in changes),
        **{name: _sum(changes, name) for name in SPENT},
    )


SPENT = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def _sum(changes: tuple[ModelStatistics, ...], name: str) -> Spent:
    each = [getattr(one, name) for one in changes]
    return Spent(sum(one.count for one in each), sum(one.ns for one in each))
