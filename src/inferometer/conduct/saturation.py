"""Over-saturation: decide, while a stage is in progress, that the server clearly does not keep up with it.

The test is that of the report (analysis/overload.py), on the requests that have arrived so far: one that is in flight counts as ending
now, so that a slow start looks like a stage that is too short and not like a full pipeline. A run is looked at many times, and the
queue of a busy server grows for a while by chance. So a stage is called saturated only if the number in flight grows by a larger share
of the arrivals than the report requires, and more surely, at two looks in a row, the second after a fifth more time than the first.

`Saturation.look` has no clock and reads no files. The requests of a stage are known from its plan; sessions are not judged, because when
their later turns arrive depends on the server.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.overload import CONSTANT_RATE, overload
from inferometer.records import MISSING, Columns, CutShort, StagePlan
from inferometer.types import OpenStage
from inferometer.units import NS

GROWTH = 0.1
"""Share of the arrivals by which the number in flight has to grow; the report requires limits.overload, by default 0.02."""
T = 2.5
"""What Student's t of the growth has to exceed at a look; the report requires 1.73."""
LOOKS = 2
"""Looks in a row that have to agree."""
FIRST_LOOK, NEXT_LOOK = 1.0, 1.2
"""Seconds until the first look, and by what factor the time grows from look to look."""
FEWEST = 100
"""Arrivals that a look needs."""
_RECORDED = 0.1
"""Seconds that a response may take until it is in the rows."""
_WORTH = 0.8
"""A stage that is over more than this share of its time is not worth cutting."""


class Saturation:
    """Watches the stages that may be cut short: those of `stages` that are not None."""

    def __init__(self, plans: Sequence[StagePlan], stages: Sequence[OpenStage | None], limit: float) -> None:
        self._plans, self._stages = plans, stages
        self._limit = max(GROWTH, limit)
        self._arrivals: _Arrivals | None = None
        self._stage = -1
        self._next = FIRST_LOOK
        self._agreeing = 0
        self._rows_seen = 0

    def look(self, rows: Columns, elapsed: float, stage: int, ended: int) -> CutShort | None:
        """Return that the stage in progress should end, at most once per stage. `rows` are all requests that have ended since the
        last look, with times since t=0; `ended` is how many have ended in the whole run."""
        self._rows_seen += len(rows)
        if stage != self._stage:
            self._stage, self._next, self._agreeing = stage, FIRST_LOOK, 0
            plan = self._stages[stage] if _is_judged(self._plans[stage]) else None
            self._arrivals = None if plan is None else _Arrivals(stage, plan)
        arrivals = self._arrivals
        if arrivals is None:
            return None
        arrivals.add(rows)
        planned = arrivals.planned
        lasted = arrivals.lasted(elapsed)
        is_complete = self._rows_seen >= ended  # rows that are missing look like a queue
        if lasted < self._next or lasted > _WORTH * planned or not is_complete:
            return None
        self._next = NEXT_LOOK * lasted
        self._agreeing = self._agreeing + 1 if self._is_overloaded(arrivals.until(elapsed - _RECORDED)) else 0
        if self._agreeing < LOOKS:
            return None
        self._arrivals = None
        return CutShort(stage, lasted, planned)

    def _is_overloaded(self, rows: Columns) -> bool:
        if len(rows) < FEWEST:
            return False
        return overload(rows, self._plans[self._stage], self._limit, T).status == "overloaded"


def _is_judged(plan: StagePlan) -> bool:
    return plan.open and plan.type in CONSTANT_RATE and not plan.stable


class _Arrivals:
    """The requests of a stage in progress: when each was planned, and when it ended."""

    def __init__(self, stage: int, plan: OpenStage) -> None:
        self._stage, self._plan = stage, plan
        count = len(plan.instants)
        self._begin: int | None = None
        self._sent, self._done = np.full(count, MISSING), np.full(count, MISSING)
        self._failure = np.zeros(count, np.int32)

    @property
    def planned(self) -> float:
        return self._plan.duration / NS

    def add(self, rows: Columns) -> None:
        own = rows[rows["stage"] == self._stage]
        if not len(own):
            return
        index = (own["id"] - self._plan.first_id) // self._plan.id_step
        if self._begin is None:
            self._begin = int(own["intended"][0]) - int(self._plan.instants[index[0]])
        self._sent[index], self._done[index], self._failure[index] = own["sent"], own["done"], own["failure"]

    def lasted(self, elapsed: float) -> float:
        """Seconds since the stage began; 0 as long as no request has ended, from which that is known."""
        return elapsed - self._begin / NS if self._begin is not None else 0.0

    def until(self, elapsed: float) -> Columns:
        """The requests that have arrived by then. Those in flight end then."""
        begin, at = self._begin or 0, round(elapsed * NS)
        count = int(np.searchsorted(self._plan.instants, at - begin, "right"))
        intended = begin + self._plan.instants[:count]
        done = self._done[:count]
        never = np.full(count, -1)
        columns: dict[str, NDArray[Any]] = {
            "id": np.arange(count),
            "session": never,
            "turn": never,
            "open_loop": np.ones(count, np.int8),
            "intended": intended,
            "sent": np.where(self._sent[:count] == MISSING, intended, self._sent[:count]),
            "done": np.where((done == MISSING) | (done > at), at, done),
            "failure": self._failure[:count],
        }
        return Columns(count, columns)
