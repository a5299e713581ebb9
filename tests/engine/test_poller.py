"""Sockets with something to read are named together, and no longer once they are forgotten; of either kind of watcher alike."""

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


class Room:
    """Pairs of sockets, of which one end is watched, and what was named in each round."""

    def __init__(self, kind: Callable[..., EpollPoller | LoopPoller], stack: contextlib.ExitStack) -> None:
        loop_factory = new_loop if kind is EpollPoller else asyncio.new_event_loop
        self.loop = stack.enter_context(contextlib.closing(loop_factory()))
        self.named: list[list[int]] = []
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

    def tell(self, descriptor: int) -> None:
        """Have a byte there."""
        near, far = self.ends[descriptor]
        far.send(b"x")
        assert select.select([near], [], [], 30)[0]

    def _ready(self, ready: object) -> None:
        self.named.append(sorted(descriptor for descriptor, _ in ready))  # type: ignore[attr-defined]

    def rounds(self, count: int = 3) -> list[list[int]]:
        """What is named while the loop goes round so often."""
        self.named.clear()

        async def turn() -> None:
            for _ in range(count):
                await asyncio.sleep(0.002)

        self.loop.run_until_complete(turn())
        return self.named


@pytest.fixture(params=KINDS)
def room(request: pytest.FixtureRequest) -> Iterator[Room]:
    with contextlib.ExitStack() as stack:
        yield Room(request.param, stack)


def test_all_that_have_bytes_are_named_together_until_they_are_read(room: Room) -> None:
    first, _quiet, third = room.add(), room.add(), room.add()
    assert not room.rounds()
    for each in (first, third):
        room.tell(each)
    named = room.rounds()
    assert len(named) > 1 and all(each == sorted((first, third)) for each in named)
    room.ends[first][0].recv(1)
    assert room.rounds()[-1] == [third]


def test_a_close_and_a_reset_are_named_again_and_again(room: Room) -> None:
    """The second after the bytes in front of it were read: uvloop's own readers are called once only for a failed socket."""
    closed, reset = room.add(), room.add()
    room.ends[closed][1].close()
    room.ends[reset][1].send(b"x")
    room.rounds()
    room.ends[reset][1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    room.ends[reset][1].close()
    assert room.rounds()[-1] == sorted((closed, reset))
    room.poller.forget(closed)
    assert room.rounds()[-1] == [reset]
    with pytest.raises(ConnectionResetError):
        while room.ends[reset][0].recv(1):
            pass


def test_what_is_forgotten_is_not_named(room: Room) -> None:
    one, other = room.add(), room.add()
    for each in (one, other):
        room.tell(each)
    room.poller.forget(one)
    assert set(map(tuple, room.rounds())) == {(other,)}
    room.poller.forget(other)
    room.rounds(1)  # it may have been named already: the inbox knows better
    assert not room.rounds()


def test_what_the_loop_named_is_not_told_after_the_end() -> None:
    soon: list[Callable[[], None]] = []
    told: list[object] = []
    loop = SimpleNamespace(call_soon=soon.append)
    poller = LoopPoller(cast("Any", loop), told.append)
    poller._collect(3)
    poller.close()
    (tell,) = soon
    tell()
    assert not told


def test_this_platforms_own() -> None:
    with contextlib.closing(new_loop()) as loop:
        found = new_poller(loop, lambda ready: None)
        assert isinstance(found, EpollPoller if sys.platform == "linux" else LoopPoller)
        found.close()
