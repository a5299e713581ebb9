"""Calls functions at absolute times, with one timer that does not round."""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from inferometer.serve.models.types import NEVER
from inferometer.timing.clock import now
from inferometer.timing.timer import deadline_timer

Alarm = list[Any]
"""[deadline, number, call]; the call is None once it is cancelled, so that nothing it refers to is kept."""


class Alarms:
    """Pending calls, ordered by time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._alarms: list[Alarm] = []
        self._number, self._n_cancelled, self._armed = 0, 0, NEVER
        self._timer = deadline_timer(loop, self._fired)

    def at(self, deadline: int, call: Callable[[], object]) -> Alarm:
        """Call at `deadline` (monotonic ns); calls for the same time run in the order in which they were added."""
        self._number += 1
        alarm = [deadline, self._number, call]
        heappush(self._alarms, alarm)
        self._arm()
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        alarm[2] = None
        self._n_cancelled += 1
        if self._n_cancelled > 64 + len(self._alarms) // 2:
            self._alarms = [one for one in self._alarms if one[2] is not None]
            heapify(self._alarms)
            self._n_cancelled = 0

    def close(self) -> None:
        self._alarms.clear()
        self._timer.close()

    def _fired(self) -> None:
        self._armed = NEVER
        t = now()
        while self._alarms and self._alarms[0][0] <= t:
            if (call := heappop(self._alarms)[2]) is not None:
                call()
        self._arm()

    def _arm(self) -> None:
        if self._alarms and self._alarms[0][0] < self._armed:
            self._armed = self._alarms[0][0]
            self._timer.arm(self._armed)
