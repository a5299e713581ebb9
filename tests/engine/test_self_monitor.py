"""Samples of the client's own health: what they count, and over which time."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from inferometer.engine import telemetry
from inferometer.engine.reader import StampClock
from inferometer.engine.run_state import RunState
from inferometer.engine.telemetry import SelfMonitor, Telemetry
from inferometer.timing.clock import now

MS = 1_000_000


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> "World":
    return World(monkeypatch)


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 0
        monkeypatch.setattr(telemetry, "now", lambda: self.now)
        monkeypatch.setattr(telemetry.time, "process_time_ns", lambda: self.cpu)
        self.clock = StampClock(0, False)
        self.state = RunState(given_up=[])
        self.monitor = SelfMonitor(0, self.clock, self.state, 0)


def test_time_spent_spinning_is_not_part_of_the_cpu_share(monitor: World) -> None:
    monitor.now, monitor.cpu, monitor.state.spun = 100 * MS, 90 * MS, 60 * MS
    sample = monitor.monitor.sample()
    assert (sample.cpu, sample.spinning) == (pytest.approx(0.3), pytest.approx(0.6))
    monitor.now, monitor.cpu = 200 * MS, 100 * MS
    sample = monitor.monitor.sample()
    assert (sample.cpu, sample.spinning) == (pytest.approx(0.1), 0)


def test_cpu_share_is_never_negative(monitor: World) -> None:
    """Spinning is measured by the clock on the wall, so it may be a little more than the CPU time."""
    monitor.now, monitor.cpu, monitor.state.spun = 100 * MS, 90 * MS, 95 * MS
    sample = monitor.monitor.sample()
    assert (sample.cpu, sample.spinning) == (0, pytest.approx(0.9))


def test_reads_are_counted_per_sample(monitor: World) -> None:
    for reads, unstamped in ((10, 1), (25, 1)):
        monitor.clock.reads, monitor.clock.unstamped = reads, unstamped
        sample = monitor.monitor.sample()
    assert (sample.reads, sample.unstamped) == (15, 0)


def test_stalls_of_ten_milliseconds_add_up(monitor: World) -> None:
    watched = monitor.monitor
    for stall in (3, 12, 15):
        watched.blocked(stall * MS)
    sample = watched.sample()
    assert (sample.stall, sample.stalled) == (15 * MS, 27 * MS)
    assert watched.sample().stall == 0


def test_work_that_continues_after_a_tick_is_a_stall() -> None:
    """The reader runs ticks in the middle of its work, so they are on time although no socket is read."""
    watched = SelfMonitor(0, StampClock(0, False), RunState(given_up=[]), now())
    anything: Any = SimpleNamespace(
        publish=lambda: None, flush=lambda: None, control={}, queued=0, sent=0, ok=0, failed=0, in_flight=0, stage=0
    )
    anything.state = anything

    async def work() -> None:
        telemetry = Telemetry(anything, anything, anything, 1, asyncio.get_running_loop())
        telemetry.tick(watched, now())
        time.sleep(0.02)
        await asyncio.sleep(0)

    asyncio.run(work())
    assert watched.sample().stalled >= 20 * MS
