"""What was read is decoded in its order, all of it before anything is settled; what is due never waits for long."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from inferometer.engine import reader
from inferometer.engine.reader import Reader, StampClock
from inferometer.timing.clock import now

STAMPED = 1_700_000_000_000_000_000
"""Of the wall clock, which the monotonic one is taken to be equal to here."""


class World:
    """An inbox whose sockets are ready when it is told, and a log of what happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.watched: list[int] = []
        self.clock = StampClock(0, True)
        self.between: Callable[[], None] = lambda: None
        monkeypatch.setattr(reader, "new_poller", self._new_poller)
        self.reader = Reader(cast("Any", None), self.clock, lambda: self.log.append("settle"), self._between)

    def _new_poller(self, loop: object, ready: Any) -> "World":
        self._ready = ready
        return self

    def _between(self) -> None:
        self.log.append("due?")
        self.between()

    def watch(self, descriptor: int) -> None:
        self.watched.append(descriptor)

    def forget(self, descriptor: int) -> None:
        self.watched.remove(descriptor)

    def wires(self, count: int) -> "list[Wire]":
        wires = [Wire(self, number) for number in range(count)]
        for wire in wires:
            self.reader.watch(wire.number, wire)
        return wires

    def read(self, *descriptors: int) -> None:
        self._ready([(descriptor, 1) for descriptor in descriptors])

    def happened(self) -> list[str]:
        return [what for what in self.log if what != "due?"]


class Wire:
    """Where bytes come from."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.is_open = True
        self.error: OSError | None = None
        self.comes: bytes | OSError = b"x%d" % number
        self.then: list[bytes | OSError] = []
        self.stamp: int | None = None
        self.heard: list[tuple[int, int]] = []
        self._world = world

    def receive(self, size: int, ancillary_size: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        self._world.log.append(f"read {self.number}")
        comes = self.comes
        if self.then:
            self.comes = self.then.pop(0)
        if isinstance(comes, OSError):
            raise comes
        stamps = [] if self.stamp is None else [self._stamp(self.stamp)]
        return comes, stamps, 0, None

    @staticmethod
    def _stamp(at: int) -> tuple[int, int, bytes]:
        seconds, nanoseconds = divmod(at, 1_000_000_000)
        return 1, 35, seconds.to_bytes(8, "little") + nanoseconds.to_bytes(8, "little")

    def deliver(self, data: bytes, at: int, delay: int) -> None:
        self._world.log.append(f"decode {data.decode()}")
        self.heard.append((at, delay))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_all_is_read_then_decoded_in_its_order_then_settled_once(world: World) -> None:
    world.wires(3)
    world.read(2, 0, 1)
    assert world.happened() == ["read 2", "read 0", "read 1", "decode x2", "decode x0", "decode x1", "settle"]


def test_nothing_of_a_source_that_another_closed(world: World) -> None:
    first, second = world.wires(2)
    first.deliver = lambda *_: setattr(second, "is_open", False)  # type: ignore[method-assign]
    world.read(0, 1)
    assert world.happened() == ["read 0", "read 1", "settle"]


def test_a_source_is_not_read_after_what_was_due_has_closed_it(world: World) -> None:
    world.wires(3)
    world.between = lambda: world.reader.forget(2)
    world.read(0, 1, 2)
    assert world.happened() == ["read 0", "read 1", "decode x0", "decode x1", "settle"]
    assert world.watched == [0, 1]


def test_a_source_that_has_nothing_after_all_is_passed_over(world: World) -> None:
    world.wires(2)[0].comes = BlockingIOError()
    world.read(0, 1)
    assert world.happened() == ["read 0", "read 1", "decode x1", "settle"]


def test_an_error_is_the_end_and_is_kept(world: World) -> None:
    (wire,) = world.wires(1)
    wire.comes = ConnectionResetError()
    world.read(0)
    assert world.happened() == ["read 0", "decode ", "settle"]
    assert wire.error is wire.comes


@pytest.mark.parametrize("end", [b"", BlockingIOError(), ConnectionResetError()])
def test_one_that_broke_is_read_to_its_end_and_all_of_that_is_settled_together(
    world: World, end: bytes | OSError
) -> None:
    (wire,) = world.wires(1)
    wire.then = [b"more", end]
    broke = BrokenPipeError()
    world.reader.read_remaining(0, broke)
    assert world.happened() == ["read 0"] * 3 + ["decode x0", "decode more", "decode ", "settle"]
    assert wire.error is broke


@pytest.mark.parametrize(
    ("then", "decoded"),
    [
        ([b"more", BlockingIOError()], ["x0", "more"]),
        ([b"more", b"", b"never"], ["x0", "more", ""]),
        ([ConnectionResetError(), b"never"], ["x0", ""]),
    ],
    ids=["empty", "closed", "broken"],
)
def test_what_lies_unread_is_read_on_demand_and_settled_together(
    world: World, then: list[bytes | OSError], decoded: list[str]
) -> None:
    (wire,) = world.wires(1)
    wire.then = then
    world.reader.read_until(0, now() + 10**12)
    assert world.happened() == ["read 0"] * (len(decoded) + (decoded[-1] != "")) + [
        *(f"decode {data}" for data in decoded),
        "settle",
    ]


def test_on_demand_nothing_is_read_after_what_came_too_late(world: World) -> None:
    (wire,) = world.wires(1)
    wire.stamp = now() - 1_000
    world.reader.read_until(0, wire.stamp - 1)
    assert world.happened() == ["read 0", "decode x0", "settle"]
    assert wire.heard[0][0] == wire.stamp


def test_on_demand_there_may_be_nothing(world: World) -> None:
    world.wires(1)[0].comes = BlockingIOError()
    world.reader.read_until(0, now())
    world.reader.read_until(5, now())
    assert world.happened() == ["read 0"]


def test_bytes_count_from_the_kernels_stamp_on_our_timeline(world: World) -> None:
    (wire,) = world.wires(1)
    world.clock.offset = STAMPED - now()
    wire.stamp = STAMPED
    before = now()
    world.read(0)
    ((at, delay),) = wire.heard
    assert at == STAMPED - world.clock.offset
    assert before - at <= delay <= now() - at


@pytest.mark.parametrize("stamp", [None, 1 << 62])
def test_bytes_without_a_stamp_or_with_one_to_come_count_from_when_they_were_read(world: World, stamp: int) -> None:
    (wire,) = world.wires(1)
    wire.stamp = stamp
    before = now()
    world.read(0)
    ((at, delay),) = wire.heard
    assert before <= at <= now() and delay == -1


def test_no_three_steps_follow_each_other_without_a_look_at_what_is_due(world: World) -> None:
    """Reading, decoding and settling are the steps."""
    world.wires(7)
    world.read(*range(7))
    steps = "".join("." if what == "due?" else "s" for what in world.log)
    assert steps.count("s") == 7 + 7 + 1
    assert "sss" not in steps
    assert steps.endswith(".s"), "what is settled may be long: it is looked before it"


def test_it_is_known_whether_it_is_being_decoded(world: World) -> None:
    (wire,) = world.wires(1)
    seen: list[bool] = []
    wire.deliver = lambda *_: seen.append(world.reader.is_decoding)  # type: ignore[method-assign]
    world.read(0)
    assert seen == [True] and not world.reader.is_decoding
