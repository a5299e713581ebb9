"""Calls functions at absolute times, with one timer that does not round."""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from inferometer.serve.models.types import NEVER
from inferometer.timing.clock import now
from inferometer.timing.timer import deadline_timer


class Alarms:
    """Pending calls, ordered by time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._order, self._armed = 0, NEVER
        self._timer = deadline_timer(loop, self._fired)

    def at(self, deadline: int, call: Callable[[], None]) -> None:
        """Call at `deadline` (monotonic ns); calls for the same time run in the order in which they were added."""
        self._order += 1
        heappush(self._calls, (deadline, self._order, call))
        self._arm()

    def close(self) -> None:
        self._calls.clear()
        self._timer.close()

    def _fired(self) -> None:
        self._armed = NEVER
        t = now()
        while self._calls and self._calls[0][0] <= t:
            heappop(self._calls)[2]()
        self._arm()

    def _arm(self) -> None:
        if self._calls and self._calls[0][0] < self._armed:
            self._armed = self._calls[0][0]
            self._timer.arm(self._armed)
