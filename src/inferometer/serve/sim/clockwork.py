"""What drives the server: one timer on absolute deadlines for the timing model's next due and for alarms of our own.

Nothing sleeps relatively. A turn does what is due, the model's tokens in order of their due times, and arms the timer for
what comes next; when that is past already it comes with the loop's next round, so that readers get their turn between. A turn
is short, for where more is due than can be made, doing all of it would take longer each time, and nobody be heard meanwhile.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush

from inferometer.serve.sim.jobs import NEVER, Timing
from inferometer.timing.clock import now
from inferometer.timing.timer import deadline_timer

_TURN_NS = 2_000_000
_SLICE_NS = 100_000
"""What is due within so much is made before the clock is looked at again."""


class Clockwork:
    def __init__(self, loop: asyncio.AbstractEventLoop, timing: Timing) -> None:
        self.timing = timing
        self._alarms: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._armed = NEVER
        self._timer = deadline_timer(loop, self._fired)

    def at(self, deadline: int, call: Callable[[], None]) -> None:
        """Call at `deadline` (monotonic ns); those of one instant in the order in which they were asked for."""
        self._order += 1
        heappush(self._alarms, (deadline, self._order, call))
        self._arm()

    def changed(self) -> None:
        """The model was given or lost something: do at once what was due first, and aim at what comes next."""
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
        """Make what is due at `t`, for so many ns."""
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
