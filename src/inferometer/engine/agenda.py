"""What is due when: callbacks at absolute deadlines, in order, on one timer that does not round."""

import asyncio
import heapq
from collections.abc import Callable

from inferometer.timing.clock import now
from inferometer.timing.timer import deadline_timer

_JUST = 1_000_000
"""ns"""


class Agenda:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = deadline_timer(loop, self._due)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self._running = False
        self.timer_kind = self._timer.kind

    def at(self, deadline: int, callback: Callable[[], None]) -> None:
        """Call back at `deadline` (monotonic ns), or as soon as the loop gets there."""
        self._pushed += 1  # equal deadlines keep their order
        heapq.heappush(self._heap, (deadline, self._pushed, callback))
        if self._heap[0][1] == self._pushed and not self._running:
            self._timer.arm(deadline)

    def catch_up(self) -> None:
        """Call what has just come due, if anything has: for long work to ask now and then. What is late already waits for
        its turn in the loop: a client that falls behind and does not read answers would open a connection for each request."""
        if self._heap and not self._running and 0 <= now() - self._heap[0][0] <= _JUST:
            self._due()

    def close(self) -> None:
        self._timer.close()
        self._heap.clear()

    def _due(self) -> None:
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
        if heap:
            self._timer.arm(heap[0][0])
