"""The reader's work that goes on after a tick is a stall of the event loop."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from inferometer.engine.telemetry import Telemetry
from inferometer.timing.clock import now


def test_work_that_continues_after_a_tick_is_a_stall() -> None:
    """The reader runs ticks in the middle of its work, so they are on time although no socket is read."""
    stalls: list[int] = []
    monitor: Any = SimpleNamespace(tick=lambda *_: None, blocked=stalls.append)
    counts = {"queued": 0, "sent": 0, "ok": 0, "failed": 0, "in_flight": 0, "stage": 0}
    anything: Any = SimpleNamespace(publish=lambda: None, control={}, **counts)

    async def work() -> None:
        telemetry = Telemetry(anything, anything, anything, anything, 1, asyncio.get_running_loop())
        telemetry.tick(monitor, now())
        time.sleep(0.01)
        telemetry.tick(monitor, now())
        time.sleep(0.01)
        await asyncio.sleep(0)

    asyncio.run(work())
    assert len(stalls) == 1 and stalls[0] >= 20_000_000
