"""Keeping the processor awake: which way, for how long, and never at the expense of other processes."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferometer.config import from_mapping
from inferometer.engine import awake as module
from inferometer.engine.awake import LEAD, Awake
from inferometer.engine.run_state import RunState
from inferometer.errors import UserError

US = 1_000
MS = 1_000_000
POLL = 2 * US
"""How long a poll takes on the fake clock."""


class World:
    """The clock, the event loop and the deadlines in one; a poll finds something at the instants of `arrivals`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.clock = 0
        self.soon: list[Callable[[], None]] = []
        self.due: list[tuple[int, Callable[[], None]]] = []
        self.arrivals: list[int] = []
        self.polls = self.rounds = 0
        self.state = RunState(given_up=[])
        self.runnable = 1
        self.switches = 0
        self.switches_per_poll = 0
        self.latency_file = tmp_path / "cpu_dma_latency"
        monkeypatch.setattr(module, "now", lambda: self.clock)
        self.idle_driver = tmp_path / "current_driver"
        self.idle_driver.write_text("intel_idle\n")
        monkeypatch.setattr(module, "_LATENCY_FILE", str(self.latency_file))
        monkeypatch.setattr(module, "_IDLE_DRIVER", str(self.idle_driver))
        monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
        monkeypatch.setattr(module.processors, "usable", lambda: 2)
        monkeypatch.setattr(module, "_involuntary_switches", lambda: self.switches)
        monkeypatch.setattr(module.os, "pread", lambda *_: b"0.10 0.20 0.30 %d/99 7\n" % self.runnable)

    def awake(self, mode: Any = "spin") -> Awake:
        loop: Any = self
        return Awake(loop, mode, loop, self.poll, self.state)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def at(self, deadline: int, callback: Callable[[], None]) -> None:
        self.due.append((deadline, callback))

    def catch_up(self) -> bool:
        return False

    def resume(self) -> None: ...

    def poll(self) -> bool:
        self.polls += 1
        self.clock += POLL
        self.switches += self.switches_per_poll
        if self.arrivals and self.arrivals[0] <= self.clock:
            self.arrivals.pop(0)
            self.clock += 30 * US
            return True
        return False

    def run(self) -> None:
        """Run the event loop until nothing wants to run."""
        while self.soon:
            self.rounds += 1
            self.soon.pop(0)()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    world = World(monkeypatch, tmp_path)
    return world


def test_spinning_polls_until_the_instant_and_then_lets_the_process_sleep(world: World) -> None:
    world.awake().stay(1 * MS)
    world.run()
    assert 1 * MS <= world.clock < 1 * MS + POLL
    assert world.polls == pytest.approx(1 * MS / POLL, abs=1)
    assert world.rounds >= 5, "the event loop gets its turn"


def test_time_spent_spinning_leaves_out_the_work_on_what_arrived(world: World) -> None:
    world.arrivals = [100 * US, 500 * US]
    world.awake().stay(1 * MS)
    world.run()
    assert world.state.spun == pytest.approx(1 * MS - 2 * 32 * US, abs=2 * POLL)


def test_response_that_arrives_while_spinning_may_extend_it(world: World) -> None:
    awake = world.awake()
    poll, extended = awake._poll, []

    def extend() -> bool:
        found = poll()
        if found and not extended:
            extended.append(world.clock)
            awake.stay(2 * MS)
        return found

    awake._poll = extend
    world.arrivals = [100 * US]
    awake.stay(1 * MS)
    world.run()
    assert extended and world.clock >= 2 * MS


def test_no_spinning_while_another_process_waits_for_a_processor(world: World) -> None:
    awake = world.awake()
    world.runnable = 3
    awake.stay(50 * MS)
    assert not world.soon
    world.clock += module._PAUSE - 1
    world.runnable = 1
    awake.stay(50 * MS)
    assert not world.soon, "it pauses for a while"
    world.clock += 1
    awake.stay(50 * MS)
    assert world.soon


def test_spinning_ends_when_another_process_starts_to_wait(world: World) -> None:
    world.awake().stay(100 * MS)
    world.soon.pop(0)()
    world.runnable = 3
    world.run()
    assert world.clock < 2 * module._LOOK_EVERY


def test_spinning_ends_when_other_processes_keep_interrupting_it(world: World) -> None:
    """They share its processor although others are idle, for example because all are pinned to it."""
    world.switches = 1_000  # from before
    world.switches_per_poll = 1
    world.awake().stay(100 * MS)
    world.run()
    assert 0 < world.clock < 2 * module._LOOK_EVERY


@pytest.mark.parametrize(
    ("gap", "starts"), [(40 * MS, 40 * MS - LEAD), (3 * MS, 1_500 * US), (LEAD, LEAD // 2)], ids=str
)
def test_at_most_half_of_a_gap_between_sends_is_spent_spinning(world: World, gap: int, starts: int) -> None:
    awake = world.awake()
    world.clock = 7
    awake.expect_send(7 + gap)
    assert not world.soon
    assert [at for at, _ in world.due] == [7 + starts]
    world.clock = world.due[0][0]
    world.due[0][1]()
    world.run()
    assert 7 + gap <= world.clock < 7 + gap + POLL


def test_brief_gap_is_spun_through(world: World) -> None:
    world.awake().expect_send(100 * US)
    world.run()
    assert 100 * US <= world.clock < 100 * US + POLL


@pytest.mark.parametrize(("took", "spins"), [(500 * US, True), (50 * MS, False)])
def test_only_short_responses_are_awaited_by_spinning(world: World, took: int, spins: bool) -> None:
    awake = world.awake()
    for _ in range(40):
        world.soon.clear()
        awake._is_spinning = False
        awake.expect_response(took)
    assert bool(world.soon) == spins and not world.due


def test_response_of_some_milliseconds_is_awaited_by_sleeping_first(world: World) -> None:
    world.awake().expect_response(4 * MS)
    assert not world.soon
    ((at, callback),) = world.due
    assert at == 2 * MS
    world.clock = at
    callback()
    world.run()
    assert 8 * MS <= world.clock < 9 * MS


def test_off_and_latency_never_spin(world: World) -> None:
    world.latency_file.touch()
    for mode in ("off", "latency"):
        awake = world.awake(mode)
        awake.stay(1 * MS)
        awake.expect_send(1 * MS)
        awake.expect_response(100 * US)
        assert not world.soon and not world.due
        awake.close()


@pytest.mark.parametrize(("driver", "microseconds"), [("haltpoll", 0), ("intel_idle", 2), ("acpi_idle", 2)])
def test_latency_is_kept_low_until_the_end(world: World, driver: str, microseconds: int) -> None:
    world.latency_file.touch()
    world.idle_driver.write_text(driver + "\n")
    awake = world.awake("latency")
    assert awake.kind == "latency"
    assert struct.unpack("i", world.latency_file.read_bytes()) == (microseconds,)
    descriptor = awake._latency_file
    os.fstat(descriptor)
    awake.close()
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_latency_that_is_not_permitted_is_an_error_with_a_remedy(world: World) -> None:
    with pytest.raises(UserError) as caught:
        world.awake("latency")
    assert "client.awake" in caught.value.what and "auto" in caught.value.remedy


def test_latency_without_an_idle_driver_has_no_effect_so_auto_spins(world: World) -> None:
    world.latency_file.touch()
    world.idle_driver.write_text("none\n")
    assert world.awake("auto").kind == "spin"
    with pytest.raises(UserError, match="idle driver"):
        world.awake("latency")


@pytest.mark.parametrize(
    ("has_file", "processors", "kind"),
    [(True, 1, "latency"), (True, 2, "latency and spin"), (False, 2, "spin"), (False, 1.5, "off")],
)
def test_auto_takes_the_way_that_costs_other_processes_least(
    world: World, monkeypatch: pytest.MonkeyPatch, has_file: bool, processors: float, kind: str
) -> None:
    monkeypatch.setattr(module.processors, "usable", lambda: processors)
    if has_file:
        world.latency_file.touch()
    awake = world.awake("auto")
    assert awake.kind == kind
    awake.close()


def test_auto_spins_for_sends_only_if_it_cannot_set_the_latency(world: World) -> None:
    world.latency_file.touch()
    awake = world.awake("auto")
    awake.expect_send(100 * US)
    assert not world.soon
    awake.expect_response(100 * US)
    assert world.soon
    awake.close()


@pytest.mark.parametrize(("written", "read"), [(False, "off"), ("off", "off"), ("spin", "spin"), (None, "auto")])
def test_off_may_be_written_without_quotes(written: object, read: str) -> None:
    """YAML 1.1 reads it as false."""
    client = {} if written is None else {"client": {"awake": written}}
    assert from_mapping({"server": {"url": "http://x:1"}, "load": {"requests": 1}, **client}).client.awake == read
