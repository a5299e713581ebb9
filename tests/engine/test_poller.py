"""Both pollers report all sockets that can be read together, and none that are no longer watched."""

import asyncio
import contextlib
import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from inferometer.engine.poller import new_poller, run_loop

LOOPS = [asyncio.new_event_loop, run_loop]
"""Any loop, and that of shards, which uses epoll on Linux."""


class Sockets:
    """Pairs of sockets, one end of which is watched, and the descriptors reported in each round."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop], stack: contextlib.ExitStack) -> None:
        self.loop = stack.enter_context(contextlib.closing(loop_factory()))
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        self.reported: list[list[int]] = []
        self.poller = new_poller(self.loop, self._ready)
        self.ends: dict[int, tuple[socket.socket, socket.socket]] = {}
        self.on_ready: Callable[[Iterable[int]], None] = lambda ready: self.reported.append(sorted(ready))
        self._stack = stack

    def add(self) -> int:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            far = self._stack.enter_context(socket.create_connection(listener.getsockname()))
            near = self._stack.enter_context(listener.accept()[0])
        near.setblocking(False)
        self.ends[near.fileno()] = near, far
        self.poller.watch(near.fileno())
        return near.fileno()

    def send_to(self, descriptor: int) -> None:
        """Send a byte to this socket."""
        near, far = self.ends[descriptor]
        far.send(b"x")
        assert select.select([near], [], [], 30)[0]

    def _ready(self, ready: Iterable[int]) -> None:
        self.on_ready(ready)

    def rounds(self, count: int = 3) -> list[list[int]]:
        """Run this many rounds of the loop, and return the descriptors reported in each."""
        self.reported.clear()

        async def go_round() -> None:
            for _ in range(count):
                await asyncio.sleep(0.002)

        self.loop.run_until_complete(go_round())
        return self.reported


@pytest.fixture(params=LOOPS)
def sockets(request: pytest.FixtureRequest) -> Iterator[Sockets]:
    with contextlib.ExitStack() as stack:
        yield Sockets(request.param, stack)


def test_all_sockets_with_bytes_are_reported_together_until_they_are_read(sockets: Sockets) -> None:
    first, _quiet, third = sockets.add(), sockets.add(), sockets.add()
    assert not sockets.rounds()
    for each in (first, third):
        sockets.send_to(each)
    reported = sockets.rounds()
    assert len(reported) > 1 and all(each == sorted((first, third)) for each in reported)
    sockets.ends[first][0].recv(1)
    assert sockets.rounds()[-1] == [third]


def test_closed_and_reset_sockets_are_reported_in_every_round(sockets: Sockets) -> None:
    """The reset one too, after the bytes before it were read: uvloop calls its own readers only once for a failed socket."""
    closed, reset = sockets.add(), sockets.add()
    sockets.ends[closed][1].close()
    sockets.ends[reset][1].send(b"x")
    sockets.rounds()
    sockets.ends[reset][1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sockets.ends[reset][1].close()
    assert sockets.rounds()[-1] == sorted((closed, reset))
    sockets.poller.forget(closed)
    assert sockets.rounds()[-1] == [reset]
    with pytest.raises(ConnectionResetError):
        while sockets.ends[reset][0].recv(1):
            pass


def test_forgotten_sockets_are_not_reported(sockets: Sockets) -> None:
    one, other = sockets.add(), sockets.add()
    for each in (one, other):
        sockets.send_to(each)
    sockets.poller.forget(one)
    assert set(map(tuple, sockets.rounds())) == {(other,)}
    sockets.poller.forget(other)
    sockets.rounds(1)  # it may have been collected already: the reader skips it
    assert not sockets.rounds()


def test_writers_of_watched_sockets_are_called(sockets: Sockets) -> None:
    watched = sockets.add()
    written: list[int] = []

    def writable() -> None:
        written.append(watched)
        sockets.loop.remove_writer(watched)

    sockets.loop.add_writer(watched, writable)
    sockets.send_to(watched)
    assert [watched] in sockets.rounds() and written == [watched]
    sockets.poller.forget(watched)
    sockets.rounds(1)
    assert not sockets.rounds()


def test_errors_of_callbacks_reach_the_loops_handler(sockets: Sockets) -> None:
    def fail(ready: Iterable[int]) -> None:
        sockets.poller.forget(*ready)
        raise ValueError("a bug")

    sockets.on_ready = fail
    sockets.send_to(sockets.add())
    sockets.rounds()
    assert [str(context["exception"]) for context in sockets.errors] == ["a bug"]


def test_what_a_callback_schedules_runs_although_nothing_else_happens(sockets: Sockets) -> None:
    """Without a timeout of the loop, which only knows what was scheduled before it began to wait."""
    for schedule in (sockets.loop.call_soon, lambda callback: sockets.loop.call_later(0.001, callback)):
        done = sockets.loop.create_future()
        descriptor = sockets.add()

        def ready(
            ready: object, schedule: Any = schedule, done: "asyncio.Future[None]" = done, own: int = descriptor
        ) -> None:
            sockets.poller.forget(own)
            schedule(lambda: done.set_result(None))

        sockets.on_ready = ready
        sockets.send_to(descriptor)
        sockets.loop.run_until_complete(done)


def test_threads_wake_a_waiting_loop(sockets: Sockets) -> None:
    sockets.add()
    assert sockets.loop.run_until_complete(sockets.loop.run_in_executor(None, lambda: 5)) == 5


def test_other_readers_are_called_with_their_arguments(sockets: Sockets) -> None:
    """Timers are such."""
    near, far = socket.socketpair()
    with near, far:
        done = sockets.loop.create_future()

        def readable(what: str) -> None:
            sockets.loop.remove_reader(near)
            done.set_result(what)

        sockets.loop.add_reader(near, readable, "timer")
        far.send(b"x")
        assert sockets.loop.run_until_complete(done) == "timer"
