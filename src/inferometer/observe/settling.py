"""Whether the current stage is stable: read from the spools of all shards as they grow, and judged as the report will judge it.

Every shard publishes the instant up to which all of its responses are in the spool; the shard that is furthest behind decides.
"""

from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np

from inferometer.analysis import stability
from inferometer.records import StagePlan
from inferometer.store.spool import Control, rows_of

_Rows = np.ndarray[tuple[int], np.dtype[np.void]]


class Settling:
    """Watches for the current stage to become stable. The shards' control files must exist."""

    def __init__(self, spool: Path, shards: int, plans: Sequence[StagePlan]) -> None:
        self._spool = spool
        self._controls = [Control(spool / f"{shard}.control", create=False) for shard in range(shards)]
        self._rules = [stability.rule_of(plan) for plan in plans]
        self._rows_read = [0] * shards
        self._good: list[list[_Rows]] = [[] for _ in plans]  # by stage, since a shard may be ahead of the others
        self._windows_judged = [0] * len(plans)

    def look(self, lost: Container[int] = ()) -> int | None:
        """Return the number of the current stage if it is stable and should end, else None. Call it every now and then.

        `lost` are shards that have died: the others are not held up by them.
        """
        running = [control for shard, control in enumerate(self._controls) if shard not in lost]
        stage = min((control["stage"] for control in running), default=0)
        until = _recorded_until(running)
        self._read(stage)
        rule, good = self._rules[stage], self._good[stage]
        if rule is None or not good:
            return None
        windows = (until - min(int(rows["done"].min()) for rows in good)) // rule.window
        if windows <= self._windows_judged[stage]:
            return None
        self._windows_judged[stage] = windows
        done, sent = (np.concatenate([rows[name] for rows in good]) for name in ("done", "sent"))
        found = stability.assess(done, sent, rule, until)
        return stage if found.settled is not None else None

    def _read(self, first: int) -> None:
        """Read the successful responses that are new, of stage `first` and later ones."""
        for shard, control in enumerate(self._controls):
            count, rows_read = control["rows"], self._rows_read[shard]
            if count == rows_read:
                continue
            self._rows_read[shard] = count
            rows = rows_of(self._spool, shard, count, rows_read)
            for stage in range(first, len(self._rules)):
                good = rows[(rows["stage"] == stage) & (rows["failure"] == 0)][["done", "sent"]].copy()
                if self._rules[stage] is not None and len(good):
                    for name in ("done", "sent"):  # since t=0: each shard has a clock of its own
                        good[name] -= control["t0"]
                    self._good[stage].append(good)


def _recorded_until(controls: Sequence[Control]) -> int:
    """Return the instant, since t=0, before which all responses are in the spool. Shards that have ended add nothing more."""
    return min((control["recorded"] - control["t0"] for control in controls if not control["ended"]), default=0)
