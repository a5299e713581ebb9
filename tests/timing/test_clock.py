"""The offset of the wall clock, the kernel's timestamps, and timers that fire at their deadline."""

import asyncio
import select
import socket
import struct
import time

import pytest

from inferometer.timing import clock, timer
from inferometer.timing.loop import run


def test_the_offset_turns_monotonic_into_wall_clock() -> None:
    before, at, after = time.time_ns(), clock.now() + clock.wall_offset(), time.time_ns()
    assert before - 1_000_000 <= at <= after + 1_000_000


def test_the_offset_is_the_sample_with_the_closest_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = (500, 40, 300, 900, 70, 80, 90, 100, 110)
    readings: list[int] = []

    def scripted() -> int:
        """0, 500, then 1 ms, 1 ms + 40 ...: the two readings of sample i are gaps[i] apart."""
        sample, is_second = divmod(len(readings), 2)
        readings.append(sample * 1_000_000 + is_second * gaps[sample])
        return readings[-1]

    monkeypatch.setattr(clock.time, "monotonic_ns", scripted)
    monkeypatch.setattr(clock.time, "time_ns", lambda: 7_000_000_000)
    assert clock.wall_offset() == 7_000_000_000 - (1_000_000 + 20)


def test_a_timestamp_is_read_from_ancillary_data_and_is_0_without_it() -> None:
    data = struct.pack("qq", 12, 345)
    assert clock.stamp_of([(socket.SOL_SOCKET, clock.SO_TIMESTAMPNS, data)]) == 12_000_000_345
    assert clock.stamp_of([]) == 0


def test_the_kernel_timestamps_bytes_at_arrival_however_late_they_are_read() -> None:
    primed = clock.prime()
    if primed is None:
        pytest.skip("no kernel timestamps on this platform")
    one, two = _pair()
    with primed, one, two:
        clock.enable_stamps(two)
        before = clock.now()
        one.send(b"x")
        assert select.select([two], [], [], 30)[0]
        after = clock.now()
        time.sleep(0.03)
        stamp = clock.stamp_of(two.recvmsg(1, clock.CMSG_SPACE)[1]) - clock.wall_offset()
    assert before - 100_000 <= stamp <= after + 10_000_000


def test_prime_returns_none_without_kernel_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock.sys, "platform", "darwin")
    assert clock.prime() is None


@pytest.mark.parametrize("kind", [timer.TimerfdTimer, timer.LoopTimer])
def test_a_timer_fires_once_and_never_before_its_deadline(kind: type) -> None:
    async def fired_at() -> tuple[int, list[int]]:
        fired: list[int] = []
        one = kind(asyncio.get_running_loop(), lambda: fired.append(clock.now()))
        deadline = clock.now() + 3_300_000
        one.arm(deadline)
        await until_fired(fired)
        await asyncio.sleep(0.05)
        one.close()
        return deadline, fired

    deadline, fired = run(fired_at())
    assert len(fired) == 1
    assert fired[0] >= deadline


@pytest.mark.parametrize("kind", [timer.TimerfdTimer, timer.LoopTimer])
def test_arming_again_replaces_the_deadline_and_a_past_deadline_fires_at_once(kind: type) -> None:
    async def count() -> int:
        fired: list[int] = []
        one = kind(asyncio.get_running_loop(), lambda: fired.append(1))
        one.arm(clock.now() + 5_000_000)
        one.arm(clock.now() + 10**12)
        await asyncio.sleep(0.02)
        assert not fired
        one.arm(clock.now() - 10**9)
        await until_fired(fired)
        await asyncio.sleep(0.02)
        one.disarm()
        one.close()
        return len(fired)

    assert run(count()) == 1


async def until_fired(fired: list[int]) -> None:
    async with asyncio.timeout(30):
        while not fired:
            await asyncio.sleep(0.001)


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]
