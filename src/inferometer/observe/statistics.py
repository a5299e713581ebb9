"""What a KServe server says that it spent its time on: its statistics before, between the stages, and after.

Servers count from their start, so what a stage took is a difference. A stage's end is seen within a fraction of a second, and
requests that are under way then are counted where they end: a stage's figures are averages, not exact sums.

A server counts a request when it is rid of it, which may be after its answer has come. So where nothing is under way, at the
start and at the end, it is asked until it has said the same for a while.
"""

import time
from collections.abc import Mapping

from inferometer.engine import kserve
from inferometer.engine.exchange import Place
from inferometer.errors import UserError
from inferometer.records import Spent, StageStatistics
from inferometer.wire.kserve.control import ModelStatistics, NotOffered, difference

_Mark = list[tuple[ModelStatistics, ...]]
"""What each of the servers said at one time."""

_LOOK_S = 0.02
_STILL_S = 0.06
_PATIENCE_S = 0.5
"""For others may use the server too."""


class Watch:
    """Asks for a model's statistics at its making, at every `mark`, and at the `end`."""

    def __init__(self, places: list[Place], headers: Mapping[str, str], model: str, version: str) -> None:
        self._places = places
        self._headers = headers
        self._model = (model, version)
        self._marks: list[_Mark | None] = [self._ask_until_still()]

    def mark(self, missed: int = 0) -> None:
        """A stage has ended; so have `missed` before it, of which nobody knows when: neither can be told apart."""
        self._marks += [None] * missed
        self._marks.append(self._ask())

    def end(self, missed: int = 0) -> None:
        """The last stage has ended, and so has all that was asked, but for what the server still does of what was given up."""
        self._marks += [None] * missed
        self._marks.append(self._ask_until_still())

    def _ask(self) -> _Mark | None:
        try:
            return [kserve.question(place, self._headers, "statistics", *self._model) for place in self._places]
        except (NotOffered, UserError):  # a server that cannot say is measured all the same; the report says so
            return None

    def _ask_until_still(self) -> _Mark | None:
        begin = since = time.monotonic()
        found = self._ask()
        while found and time.monotonic() - since < _STILL_S and time.monotonic() - begin < _PATIENCE_S:
            time.sleep(_LOOK_S)
            latest = self._ask()
            if latest is None:
                break
            if latest != found:
                found, since = latest, time.monotonic()
        return found

    def stages(self) -> tuple[StageStatistics | None, ...]:
        """What happened from mark to mark; None where the server did not say."""
        return tuple(_between(*pair) for pair in zip(self._marks, self._marks[1:], strict=False))


def _between(before: _Mark | None, after: _Mark | None) -> StageStatistics | None:
    if before is None or after is None:
        return None
    try:
        changes = tuple(one for pair in zip(before, after, strict=True) for one in difference(*pair))
    except UserError:  # the server was started anew in between
        return None
    return StageStatistics(
        inferences=sum(one.inference_count for one in changes),
        executions=sum(one.execution_count for one in changes),
        **{name: _sum(changes, name) for name in SPENT},
    )


SPENT = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def _sum(changes: tuple[ModelStatistics, ...], name: str) -> Spent:
    each = [getattr(one, name) for one in changes]
    return Spent(sum(one.count for one in each), sum(one.ns for one in each))
