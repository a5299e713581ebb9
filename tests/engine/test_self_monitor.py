"""Stalls of the event loop: late ticks, and reader's work that goes on after a tick."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from inferometer.engine.reader import StampClock
from inferometer.engine.self_monitor import SelfMonitor
from inferometer.engine.telemetry import Telemetry
from inferometer.timing.clock import now

MS = 1_000_000


def monitor() -> SelfMonitor:
    return SelfMonitor(0, StampClock(0, False), now())


def test_stalls_of_ten_milliseconds_add_up() -> None:
    watched = monitor()
    for stall in (3, 12, 15):
        watched.blocked(stall * MS)
    sample = watched.sample(0)
    assert (sample.stall, sample.stalled) == (15 * MS, 27 * MS)
    assert watched.sample(0).stall == 0


def test_work_that_continues_after_a_tick_is_a_stall() -> None:
    """The reader runs ticks in the middle of its work, so they are on time although no socket is read."""
    watched = monitor()
    anything: Any = SimpleNamespace(
        publish=lambda: None, control={}, queued=0, sent=0, ok=0, failed=0, in_flight=0, stage=0
    )

    async def work() -> None:
        telemetry = Telemetry(anything, anything, anything, anything, 1, asyncio.get_running_loop())
        telemetry.tick(watched, now())
        time.sleep(0.02)
        await asyncio.sleep(0)

    asyncio.run(work())
    assert watched.sample(0).stalled >= 20 * MS
