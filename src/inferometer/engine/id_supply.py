"""The ids of a closed stage's requests that are still to be sent, in the order in which they are used."""

from collections import deque
from collections.abc import Sequence

from inferometer.types import ClosedStage

_UNBOUNDED = 1 << 40
"""More requests than a stage can send."""


class IdSupply:
    """The shard's own ids, then those that the parent deals out during the stage (fleet/dealing.py).

    The first `reserved` ids are not part of it: they are those of the users' first requests.
    """

    def __init__(self, plan: ClosedStage, reserved: int) -> None:
        first, step = plan.first_id, plan.id_step
        self._total = plan.granted or plan.requests or _UNBOUNDED
        own = range(first + reserved * step, first + self._total * step, step)
        self._ranges = deque([own] if own else [])
        self.left = len(own)
        self.is_complete = not plan.granted
        """Nothing more will be dealt out."""

    @property
    def used(self) -> int:
        """How many ids were taken or reserved."""
        return self._total - self.left

    def add(self, more: range, is_last: bool) -> None:
        """Add ids that the parent has dealt out."""
        self.is_complete = is_last
        if more:
            self._ranges.append(more)
            self._total += len(more)
            self.left += len(more)

    def take(self, count: int) -> Sequence[int]:
        """Return the next `count` ids, of which there must be as many."""
        self.left -= count
        first = self._ranges[0]
        if count < len(first):
            self._ranges[0] = first[count:]
            return first[:count]
        self._ranges.popleft()
        missing = count - len(first)
        return [*first, *self._take_more(missing)] if missing else first

    def _take_more(self, count: int) -> Sequence[int]:
        self.left += count
        return self.take(count)
