"""The reader decodes in the order of reading, everything before anything is settled; work that is due never waits for long."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from inferometer.engine import reader
from inferometer.engine.reader import Reader, StampClock
from inferometer.timing.clock import now

STAMPED = 1_700_000_000_000_000_000
"""A wall-clock time; here the monotonic clock is taken to be equal to it."""


class World:
    """A reader whose sockets are ready when a test says so, and a log of what happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.watched: list[int] = []
        self.clock = StampClock(0, True)
        self.when_due: Callable[[], object] = lambda: None
        monkeypatch.setattr(reader, "new_poller", self._new_poller)
        self.due = 0
        self.arrives_later: list[int] = []
        self._turns: list[Callable[[], None]] = []
        self.reader = Reader(cast("Any", self), self.clock, lambda: self.log.append("settle"), self)

    def _new_poller(self, loop: object, ready: Any) -> "World":
        self._ready = ready
        return self

    def catch_up(self) -> bool:
        self.log.append("catch up")
        return bool(self.when_due())

    def watch(self, descriptor: int) -> None:
        self.watched.append(descriptor)

    def poll(self) -> bool:
        """Report the sockets that were to have something later."""
        ready, self.arrives_later = self.arrives_later, []
        if ready:
            self._ready(ready)
        return bool(ready)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._turns.append(callback)

    def next_turn(self) -> None:
        self._turns.pop(0)()

    def forget(self, descriptor: int) -> None:
        self.watched.remove(descriptor)

    def sources(self, count: int) -> "list[FakeSource]":
        sources = [FakeSource(self, number) for number in range(count)]
        for source in sources:
            self.reader.watch(source.number, source)
        return sources

    def read(self, *descriptors: int) -> None:
        self._ready(descriptors)

    def happened(self) -> list[str]:
        return [what for what in self.log if what != "catch up"]


class FakeSource:
    """A source of bytes; `comes` is what the next read returns or raises, `then` what the reads after it do."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.is_open = True
        self.error: OSError | None = None
        self.comes: bytes | OSError = b"x%d" % number
        self.then: list[bytes | OSError] = []
        self.stamp: int | None = None
        self.delivered: list[tuple[int, int]] = []
        self.is_queued = False
        self.takes = 0
        self.ending = b""
        self.pieces: list[bytes] = []
        self.stamps: list[int] = []
        self.delay = -1
        self.read_size = 8_192
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

    def deliver(self) -> None:
        self._world.log.append(f"decode {'+'.join(data.decode() for data in self.pieces)}")
        self.delivered += [(at, self.delay) for at in self.stamps]
        self.pieces, self.stamps, self.delay = [], [], -1
        until = now() + self.takes
        while now() < until:
            pass


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_everything_is_read_then_decoded_in_order_then_settled_once(world: World) -> None:
    world.sources(3)
    world.read(2, 0, 1)
    assert world.happened() == ["read 2", "read 0", "read 1", "decode x2", "decode x0", "decode x1", "settle"]


def test_bytes_wait_for_those_that_may_end_the_response(world: World) -> None:
    (source,) = world.sources(1)
    source.ending = b"\r\n\r\n"
    for ending in (b"0\r\n\r\n", b"\r\n", b"", b"x" * 5_000):
        for data in (b"data: a\n\n\r\n", b"data: b\n\n\r\n", ending):
            source.comes = data
            world.read(0)
        assert world.happened()[-5:-2] == ["read 0"] * 3
        assert world.happened()[-2:] == [f"decode data: a\n\n\r\n+data: b\n\n\r\n+{ending.decode()}", "settle"]


def test_only_so_many_reads_wait(world: World) -> None:
    (source,) = world.sources(1)
    source.ending, source.comes = b"\r\n\r\n", b"data"
    for _ in range(100):
        world.read(0)
    decoded = [what.count("data") for what in world.happened() if what.startswith("decode")]
    assert decoded == [32] * 3
    assert len(source.pieces) == 4


def test_sockets_are_read_in_the_middle_of_long_decoding(world: World) -> None:
    """What is read then is decoded in the next turn of the loop, and what has ended is settled before it is read."""
    first, *_ = world.sources(3)
    first.comes = b"long"
    first.takes = 2_000_000
    world.arrives_later = [2]
    world.read(0, 1)
    assert world.happened() == ["read 0", "read 1", "decode long", "settle", "read 2", "decode x1", "settle"]
    world.next_turn()
    assert world.happened()[7:] == ["decode x2", "settle"]


def test_sources_of_long_responses_are_read_in_larger_pieces(world: World) -> None:
    short, long = world.sources(2)
    short.comes, long.comes = b"x" * 8_191, b"x" * 8_192
    world.read(0, 1)
    assert long.read_size > short.read_size == 8_192


def test_nothing_is_delivered_to_a_source_that_another_one_closed(world: World) -> None:
    first, second = world.sources(2)
    first.deliver = lambda *_: setattr(second, "is_open", False)  # type: ignore[method-assign]
    world.read(0, 1)
    assert world.happened() == ["read 0", "read 1", "settle"]


def test_source_is_not_read_after_catch_up_has_closed_it(world: World) -> None:
    world.sources(3)
    world.when_due = lambda: world.reader.forget(2)
    world.read(0, 1, 2)
    assert world.happened() == ["read 0", "read 1", "decode x0", "decode x1", "settle"]
    assert world.watched == [0, 1]


def test_source_without_bytes_is_skipped(world: World) -> None:
    world.sources(2)[0].comes = BlockingIOError()
    world.read(0, 1)
    assert world.happened() == ["read 0", "read 1", "decode x1", "settle"]


def test_error_is_delivered_as_the_end_and_kept(world: World) -> None:
    (source,) = world.sources(1)
    source.comes = ConnectionResetError()
    world.read(0)
    assert world.happened() == ["read 0", "decode ", "settle"]
    assert source.error is source.comes


@pytest.mark.parametrize("end", [b"", BlockingIOError(), ConnectionResetError()])
def test_remaining_bytes_of_a_broken_source_are_read_and_settled_together(world: World, end: bytes | OSError) -> None:
    (source,) = world.sources(1)
    source.then = [b"more", end]
    error = BrokenPipeError()
    world.reader.read_remaining(0, error)
    assert world.happened() == ["read 0"] * 3 + [
        f"decode x0+more+{'+' * (not isinstance(end, BlockingIOError))}",
        "settle",
    ]
    assert source.error is error


@pytest.mark.parametrize(
    ("then", "decoded"),
    [
        ([b"more", BlockingIOError()], ["x0", "more"]),
        ([b"more", b"", b"never"], ["x0", "more", ""]),
        ([ConnectionResetError(), b"never"], ["x0", ""]),
    ],
    ids=["empty", "closed", "broken"],
)
def test_unread_bytes_are_read_on_demand_and_settled_together(
    world: World, then: list[bytes | OSError], decoded: list[str]
) -> None:
    (source,) = world.sources(1)
    source.then = then
    world.reader.read_until(0, now() + 10**12)
    assert world.happened() == ["read 0"] * (len(decoded) + (decoded[-1] != "")) + [
        f"decode {'+'.join(decoded)}",
        "settle",
    ]


def test_reading_on_demand_stops_after_bytes_that_came_too_late(world: World) -> None:
    (source,) = world.sources(1)
    source.stamp = now() - 1_000
    world.reader.read_until(0, source.stamp - 1)
    assert world.happened() == ["read 0", "decode x0", "settle"]
    assert source.delivered[0][0] == source.stamp


def test_reading_on_demand_without_bytes_does_nothing(world: World) -> None:
    world.sources(1)[0].comes = BlockingIOError()
    world.reader.read_until(0, now())
    world.reader.read_until(5, now())
    assert world.happened() == ["read 0"]


def test_bytes_get_the_kernels_stamp_converted_to_the_monotonic_clock(world: World) -> None:
    (source,) = world.sources(1)
    world.clock.offset = STAMPED - now()
    source.stamp = STAMPED
    before = now()
    world.read(0)
    ((at, delay),) = source.delivered
    assert at == STAMPED - world.clock.offset
    assert before - at <= delay <= now() - at


@pytest.mark.parametrize("stamp", [None, 1 << 62])
def test_bytes_without_a_stamp_or_with_a_future_one_get_the_time_of_the_read(world: World, stamp: int) -> None:
    (source,) = world.sources(1)
    source.stamp = stamp
    before = now()
    world.read(0)
    ((at, delay),) = source.delivered
    assert before <= at <= now() and delay == -1


def test_reads_without_a_kernel_stamp_are_counted(world: World) -> None:
    stamped, future, without, closed = world.sources(4)
    stamped.stamp, future.stamp, closed.comes = now() - 1_000, 1 << 62, b""
    world.read(0, 1, 2, 3)
    assert (world.clock.reads, world.clock.unstamped) == (4, 2)
    assert without.delivered[0][1] == -1
    world.clock.kernel_stamps = False
    world.read(2)
    assert (world.clock.reads, world.clock.unstamped) == (5, 2), "without kernel stamps, none is missing"


def test_what_has_come_due_is_done_after_every_step(world: World) -> None:
    """Reading, decoding and settling are the steps."""
    world.sources(7)
    world.read(*range(7))
    steps = "".join("." if what == "catch up" else "s" for what in world.log)
    assert steps.count("s") == 7 + 7 + 1
    assert "ss" not in steps
    assert steps.endswith(".s"), "settling may take long, so catch_up comes before it"


def test_is_decoding_is_true_only_while_decoding(world: World) -> None:
    (source,) = world.sources(1)
    seen: list[bool] = []
    source.deliver = lambda *_: seen.append(world.reader.is_decoding)  # type: ignore[method-assign]
    world.read(0)
    assert seen == [True] and not world.reader.is_decoding
