"""Is the stage under way stable? Read from the spools of all shards as they grow, and judged as the report will judge it.

A shard says from time to time up to which instant all of its answers are in the spool; the one that is furthest behind decides.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inferometer.analysis import stability
from inferometer.records import StagePlan
from inferometer.store.spool import Control, rows_of

_Part = np.ndarray[tuple[int], np.dtype[np.void]]


class Settling:
    """Asked now and then, `look` says which stage is to end. The control files must be there."""

    def __init__(self, spool: Path, shards: int, plans: Sequence[StagePlan]) -> None:
        self._spool = spool
        self._controls = [Control(spool / f"{shard}.control", create=False) for shard in range(shards)]
        self._rules = [stability.rule_of(plan) for plan in plans]
        self._seen = [0] * shards
        self._good: list[list[_Part]] = [[] for _ in plans]  # by stage: a shard may be ahead of the others
        self._looked_at = [0] * len(plans)

    def look(self) -> int | None:
        """The number of the stage that is under way and stable; None while it is not."""
        stage = min(control["stage"] for control in self._controls)
        until = self._recorded_until()
        self._read(stage)
        rule, good = self._rules[stage], self._good[stage]
        if rule is None or not good:
            return None
        windows = (until - min(int(part["done"].min()) for part in good)) // rule.window
        if windows <= self._looked_at[stage]:
            return None
        self._looked_at[stage] = windows
        done, sent = (np.concatenate([part[name] for part in good]) for name in ("done", "sent"))
        found = stability.assess(done, sent, rule, until)
        return stage if found.settled is not None else None

    def _recorded_until(self) -> int:
        """The instant before which all answers are in the spool; shards that are done have no more."""
        return min((control["recorded"] for control in self._controls if not control["ended"]), default=0)

    def _read(self, first: int) -> None:
        """The good answers that are new, of stages from `first` on."""
        for shard, control in enumerate(self._controls):
            count, seen = control["rows"], self._seen[shard]
            if count == seen:
                continue
            self._seen[shard] = count
            rows = rows_of(self._spool, shard, count, seen)
            for stage in range(first, len(self._rules)):
                good = rows[(rows["stage"] == stage) & (rows["failure"] == 0)][["done", "sent"]]
                if self._rules[stage] is not None and len(good):
                    self._good[stage].append(good.copy())
