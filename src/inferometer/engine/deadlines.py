"""What is due when: callbacks at absolute deadlines, in order, on one timer that does not round."""

import asyncio
import heapq
from collections.abc import Callable

from inferometer.timing.clock import now
from inferometer.timing.timer import deadline_timer

_JUST = 1_000_000
"""ns"""


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = deadline_timer(loop, self._due)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self._running = False
        self._armed_for = 0
        self.timer_kind = self._timer.kind

    def at(self, deadline: int, callback: Callable[[], None]) -> None:
        """Call back at `deadline` (monotonic ns), or as soon as the loop gets there."""
        self._pushed += 1  # equal deadlines keep their order
        heapq.heappush(self._heap, (deadline, self._pushed, callback))
        if self._heap[0][1] == self._pushed and not self._running:
            self._arm()

    def catch_up(self) -> None:
        """Call what has just come due, if anything has: for long work to ask now and then. What is late already waits for
        its turn in the loop: a client that falls behind and does not read answers would open a connection for each request.
        The timer is not set again for each, which is a system call: that is left to `wait`, which has to follow."""
        if self._heap and not self._running and 0 <= now() - self._heap[0][0] <= _JUST:
            self._call_due()

    def wait(self) -> None:
        """The long work is over: see to it that what is next comes by itself, whatever was caught up on."""
        if self._heap and self._heap[0][0] != self._armed_for:
            self._arm()

    def close(self) -> None:
        self._timer.close()
        self._heap.clear()

    def _arm(self) -> None:
        self._armed_for = self._heap[0][0]
        self._timer.arm(self._armed_for)

    def _due(self) -> None:
        self._call_due()
        if self._heap:
            self._arm()

    def _call_due(self) -> None:
        """Call what is due now. What the callbacks add waits for the next round, so that sockets are read in between."""
        heap, at = self._heap, now()
        due = []
        while heap and heap[0][0] <= at:
            due.append(heapq.heappop(heap)[2])
        self._running = True
        try:
            for callback in due:
                callback()
        finally:
            self._running = False
