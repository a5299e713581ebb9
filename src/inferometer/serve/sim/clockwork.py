"""Drives the simulator: one timer with absolute deadlines, for the timing model's next due time and for other alarms.

There are no relative sleeps. A turn does what is due, the model's tokens in order of their due times, and arms the
timer for what comes next. If that is already past, it runs in the next iteration of the loop, so that sockets are read
in between. A turn is short: if more is due than can be done, doing all of it would take longer each time and block
everything else.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from inferometer.serve.sim.jobs import NEVER, Timing
from inferometer.timing.clock import now
from inferometer.timing.timer import deadline_timer

_TURN_NS = 2_000_000
_SLICE_NS = 100_000
"""Tokens due within this time are produced before the clock is read again."""


class Clockwork:
    """The timer that drives a timing model."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timing: Timing) -> None:
        self.timing = timing
        self._alarms: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._armed = NEVER
        self._timer = deadline_timer(loop, self._fired)

    def at(self, deadline: int, call: Callable[[], None]) -> None:
        """Call at `deadline` (monotonic ns); calls for the same time run in the order in which they were added."""
        self._order += 1
        heappush(self._alarms, (deadline, self._order, call))
        self._arm()

    def changed(self) -> None:
        """Update after a change in the timing model: do what is due now, and arm the timer for what comes next."""
        self._advance(now(), 0)
        self._arm()

    def close(self) -> None:
        self._timer.close()

    def _fired(self) -> None:
        self._armed = NEVER
        t = now()
        alarms = self._alarms
        while alarms and alarms[0][0] <= t:
            heappop(alarms)[2]()
        self._advance(t, _TURN_NS)
        self._arm()

    def _advance(self, t: int, turn: int) -> None:
        """Produce what is due at `t`, for at most `turn` ns."""
        timing, end = self.timing, t + turn
        while (due := timing.due) <= t:
            timing.advance(min(t, due + _SLICE_NS))
            if now() > end:
                break

    def _arm(self) -> None:
        following = self.timing.due
        if self._alarms and self._alarms[0][0] < following:
            following = self._alarms[0][0]
        if following < self._armed:
            self._armed = following
            self._timer.arm(following)
