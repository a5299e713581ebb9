"""Runs callbacks at absolute deadlines, in order, on one timer that does not round."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from inferometer.timing.clock import now
from inferometer.timing.timer import deadline_timer

_NEVER = 1 << 62
_JUST_DUE = 5_000_000
"""Nanoseconds for which a callback counts as having just come due. It is longer than most interruptions by the host of a virtual machine:
otherwise, one that happens while a burst of responses is handled would delay all sends to the end of the burst."""

Entry = list[Any]
"""[deadline, number, callback]."""


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = deadline_timer(loop, self._fired)
        self._heap: list[Entry] = []
        self._pushed = self._cancelled = 0
        self._running = False
        self._armed_for = 0
        self.due = _NEVER
        """The earliest deadline. (It may have been cancelled since.)"""
        self.timer_kind = self._timer.kind

    def at(self, deadline: int, callback: Callable[[], object]) -> Entry:
        """Call back at `deadline` (monotonic ns), or as soon as the loop gets there. Return what `cancel` takes."""
        self._pushed += 1  # equal deadlines keep their order
        entry = [deadline, self._pushed, callback]
        heapq.heappush(self._heap, entry)
        if deadline < self.due:
            self.due = deadline
        if self._heap[0] is entry and not self._running:
            self._arm()
        return entry

    def cancel(self, entry: Entry) -> None:
        """Do not call back, and keep nothing that the callback refers to."""
        entry[2] = _ignore
        self._cancelled += 1
        if self._cancelled > 64 + len(self._heap) // 2:
            self._heap = [one for one in self._heap if one[2] is not _ignore]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def catch_up(self) -> bool:
        """Run the callbacks that have just come due, and return whether there were any: long work calls this now and then.

        Callbacks that are late already wait for their turn in the loop: a client that falls behind and does not read responses
        would open a connection for each request. The timer is not set again each time, because that is a system call: `resume`
        must be called afterwards."""
        if self._heap and not self._running and 0 <= now() - self._heap[0][0] <= _JUST_DUE:
            self._run_due()
            return True
        return False

    def resume(self) -> None:
        """Set the timer again after long work, whatever `catch_up` has run, so that the next callback comes by itself."""
        if self._heap and self._heap[0][0] != self._armed_for:
            self._arm()

    def close(self) -> None:
        self._timer.close()
        self._heap.clear()

    def _arm(self) -> None:
        self._armed_for = self._heap[0][0]
        self._timer.arm(self._armed_for)

    def _fired(self) -> None:
        self._run_due()
        if self._heap:
            self._arm()

    def _run_due(self) -> None:
        """Run the callbacks that are due now. Those that they add wait for the next round, so that sockets are read in between."""
        heap, at = self._heap, now()
        due = []
        while heap and heap[0][0] <= at:
            due.append(heapq.heappop(heap))
        self._running = True
        try:
            for entry in due:
                entry[2]()
        finally:
            self._running = False
            self.due = self._heap[0][0] if self._heap else _NEVER


def _ignore() -> None:
    """The callback of a cancelled entry."""
