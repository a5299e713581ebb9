"""What a KServe server says that it spent its time on: its statistics before, between the stages, and after.

Servers count from their start, so what a stage took is a difference. A stage's end is seen within a fraction of a second, and
requests that are under way then are counted where they end: a stage's figures are averages, not exact sums.

A server counts a request when it is rid of it, which may be after its answer has come. So where nothing is under way, at the
start and at the end, it is asked until it has said the same for a while.

Two URLs may lead to one server, whose statistics then count once. No two servers have spent the same nanoseconds: places
that say the same at the start and at the end, or what lies between two answers of the other where others keep it busy, are one.
"""

import time
from collections.abc import Mapping

from inferometer.engine import kserve
from inferometer.engine.exchange import Place
from inferometer.errors import UserError
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


class Watch:
    """Asks for a model's statistics at its making, at every `mark`, and at the `end`."""

    def __init__(self, places: list[Place], headers: Mapping[str, str], model: str, version: str) -> None:
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
            return [kserve.question(place, self._headers, "statistics", *self._model) for place in self._places]
        except NotOffered:
            return "the server offers no statistics"
        except UserError as error:
            return f"the server's statistics could not be read: {error.what}"

    def _ask_until_still(self) -> _Mark | str:
        begin = since = time.monotonic()
        found, alike, asked = self._ask(), 1, 1
        if isinstance(found, str):
            return found
        earlier = found
        while time.monotonic() - since < _STILL_S or alike < _STILL_ANSWERS:
            if time.monotonic() - begin >= _PATIENCE_S and asked >= _STILL_ANSWERS:
                break
            time.sleep(_LOOK_S)
            latest = self._ask()
            if isinstance(latest, str):
                break
            asked, alike, earlier = asked + 1, alike + 1, found
            if latest != found:
                found, since, alike = latest, time.monotonic(), 1
        self._pairs.append((earlier, found))
        return found

    def stages(self) -> tuple[StageStatistics | None, ...]:
        """What happened from mark to mark; None where the server did not say."""
        return tuple(one if isinstance(one, StageStatistics) else None for one in self._between())

    def reasons(self) -> tuple[str, ...]:
        """For each stage why it has none; empty where it has."""
        return tuple(one if isinstance(one, str) else "" for one in self._between())

    def _between(self) -> list[StageStatistics | str]:
        servers = self._servers()
        return [_between(*pair, servers) for pair in zip(self._marks, self._marks[1:], strict=False)]

    def _servers(self) -> list[int]:
        """Of the places one for each server."""
        found: list[int] = []
        for place in range(len(self._places)):
            if not any(self._is_one(other, place) for other in found):
                found.append(place)
        return found

    def _is_one(self, place: int, other: int) -> bool:
        return any(_has_spent(later[place]) for _, later in self._pairs) and all(
            _lies_between(earlier[place], earlier[other], later[place]) for earlier, later in self._pairs
        )


def _has_spent(said: _Said) -> bool:
    """Servers that have not may well say the same."""
    return any(getattr(one, name).ns for one in said for name in SPENT)


def _lies_between(low: _Said, said: _Said, high: _Said) -> bool:
    """Counts that only grow, and of which there are many: those of another server do not lie there."""
    least, found, most = _numbers(low), _numbers(said), _numbers(high)
    return all(least.get(key, 0) <= found.get(key, 0) <= most.get(key, 0) for key in least | found | most)


def _numbers(said: _Said) -> dict[tuple[object, ...], int]:
    """Everything that was counted, by what it is."""
    found: dict[tuple[object, ...], int] = {}
    for one in said:
        about = (one.name, one.version)
        found |= {(*about, "inferences"): one.inference_count, (*about, "executions"): one.execution_count}
        for name in SPENT:
            spent = getattr(one, name)
            found |= {(*about, name): spent.count, (*about, name, "ns"): spent.ns}
    return found


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
