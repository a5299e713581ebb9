"""Both pollers report all sockets that can be read together, and none that are no longer watched."""

import asyncio
import contextlib
import select
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferometer.engine.poller import EpollPoller, LoopPoller, new_poller
from inferometer.timing.loop import new_loop

KINDS = [LoopPoller, pytest.param(EpollPoller, marks=pytest.mark.skipif(sys.platform != "linux", reason="no epoll"))]


class Sockets:
    """Pairs of sockets, one end of which is watched, and the descriptors reported in each round."""

    def __init__(self, kind: Callable[..., EpollPoller | LoopPoller], stack: contextlib.ExitStack) -> None:
        loop_factory = new_loop if kind is EpollPoller else asyncio.new_event_loop
        self.loop = stack.enter_context(contextlib.closing(loop_factory()))
        self.reported: list[list[int]] = []
        self.poller = kind(self.loop, self._ready)
        stack.callback(self.poller.close)
        self.ends: dict[int, tuple[socket.socket, socket.socket]] = {}
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

    def _ready(self, ready: object) -> None:
        self.reported.append(sorted(descriptor for descriptor, _ in ready))  # type: ignore[attr-defined]

    def rounds(self, count: int = 3) -> list[list[int]]:
        """Run this many rounds of the loop, and return the descriptors reported in each."""
        self.reported.clear()

        async def go_round() -> None:
            for _ in range(count):
                await asyncio.sleep(0.002)

        self.loop.run_until_complete(go_round())
        return self.reported


@pytest.fixture(params=KINDS)
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


def test_collected_sockets_are_not_reported_after_close() -> None:
    soon: list[Callable[[], None]] = []
    reported: list[object] = []
    loop = SimpleNamespace(call_soon=soon.append)
    poller = LoopPoller(cast("Any", loop), reported.append)
    poller._collect(3)
    poller.close()
    (report,) = soon
    report()
    assert not reported


def test_new_poller_uses_epoll_on_linux() -> None:
    with contextlib.closing(new_loop()) as loop:
        poller = new_poller(loop, lambda ready: None)
        assert isinstance(poller, EpollPoller if sys.platform == "linux" else LoopPoller)
        poller.close()
