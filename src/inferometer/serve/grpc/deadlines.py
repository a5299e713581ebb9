"""The deadlines of all calls, with one timer."""

import asyncio
from heapq import heapify, heappop, heappush
from typing import Protocol

from inferometer.serve.models.types import NEVER
from inferometer.timing.clock import now
from inferometer.timing.timer import deadline_timer

_SLACK = 64
"""Entries of calls that are over may outnumber the others by this many before they are removed."""


class Expiring(Protocol):
    deadline: int

    def expire(self) -> None: ...


class Deadlines:
    """The calls whose deadlines are to come. The heap does not reference them, so that a call that is over is freed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = deadline_timer(loop, self._fired)
        self._heap: list[tuple[int, int]] = []
        self._calls: dict[int, Expiring] = {}
        self._armed = NEVER

    def add(self, call: Expiring) -> None:
        self._calls[id(call)] = call
        heappush(self._heap, (call.deadline, id(call)))
        self._arm()

    def discard(self, call: Expiring) -> None:
        if self._calls.pop(id(call), None) is not None and len(self._heap) > _SLACK + 2 * len(self._calls):
            self._heap = [(call.deadline, number) for number, call in self._calls.items()]
            heapify(self._heap)

    def close(self) -> None:
        self._calls.clear()
        self._heap.clear()
        self._timer.close()

    def _fired(self) -> None:
        self._armed, t = NEVER, now()
        while self._heap and self._heap[0][0] <= t:
            call = self._calls.get(heappop(self._heap)[1])
            if call is not None and call.deadline <= t:  # an id may be that of a later call
                del self._calls[id(call)]
                call.expire()
        self._arm()

    def _arm(self) -> None:
        if self._heap and self._heap[0][0] < self._armed:
            self._armed = self._heap[0][0]
            self._timer.arm(self._armed)
