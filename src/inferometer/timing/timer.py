"""A precise timer for absolute deadlines.

libuv and epoll round timers up to whole milliseconds; a timerfd that the loop watches does not. On platforms without
timerfd, the loop's own timer is set to fire early, and a short busy wait covers the rest.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable

from inferometer.timing.clock import now

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o2004000
_TFD_TIMER_ABSTIME = 1
_SPIN_NS = 2_000_000
"""How early the fallback wakes: loops round to 1 ms, and may be late by another 1 ms."""


def spin_until(deadline: int) -> int:
    """Busy-wait until the deadline (monotonic ns); return for how long, in ns."""
    start = at = now()
    while at < deadline:
        at = now()
    return at - start


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class TimerfdTimer:
    """Calls `callback` from the loop once per `arm`, within some tens of microseconds after the deadline."""

    kind = "timerfd"

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._settime = libc.timerfd_settime
        self._spec = _Itimerspec(0, 0, 0, 0)
        self._ref = ctypes.byref(self._spec)
        self._loop = loop
        self._callback = callback
        loop.add_reader(self._fd, self._fired)

    def arm(self, deadline: int) -> None:
        """Fire at `deadline` (monotonic ns), at once if it has passed. Replaces the previous deadline."""
        deadline = max(deadline, 1)  # 0 would disarm the timer
        self._spec.value_s, self._spec.value_ns = divmod(deadline, 1_000_000_000)
        self._settime(self._fd, _TFD_TIMER_ABSTIME, self._ref, None)

    def disarm(self) -> None:
        self._spec.value_s = self._spec.value_ns = 0
        self._settime(self._fd, _TFD_TIMER_ABSTIME, self._ref, None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # re-armed between the loop's poll and this call
            return
        self._callback()


class LoopTimer:
    """The same with the loop's own timer, for platforms without timerfd."""

    kind = "loop timer and spin"

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._deadline = 0
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, deadline: int) -> None:
        self.disarm()
        self._deadline = deadline
        early = max(deadline - now() - _SPIN_NS, 0)
        self._handle = self._loop.call_later(early / 1e9, self._fired)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        self.disarm()

    def _fired(self) -> None:
        self._handle = None
        spin_until(self._deadline)
        self._callback()


DeadlineTimer = TimerfdTimer | LoopTimer


def deadline_timer(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> DeadlineTimer:
    """Create the most precise timer that this platform has."""
    return TimerfdTimer(loop, callback) if sys.platform == "linux" else LoopTimer(loop, callback)
