"""A connection between two processes of the server: calls that return a result, and messages that do not.

A message is its length and msgpack of [number, name, arguments]. The number is 0 for a message without a result, positive
for a call, and that number negated for its result, where the name is "" or the kind of the error.

The sockets have abstract names, of which nothing is left in the file system, and both sides accept only processes of
their own user.
"""

import asyncio
import inspect
import itertools
import os
import secrets
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from inferometer.errors import UserError
from inferometer.serve.models.types import Refused, reason

Handlers = dict[str, Callable[..., Any]]
LENGTH = struct.Struct("<I")
_ERRORS: dict[str, Callable[[Any, str], Exception]] = {"Refused": Refused, "UserError": UserError}


class Link(asyncio.Protocol):
    """One end of a connection. `handlers` are called by name with the arguments of a message."""

    def __init__(self, handlers: Handlers, made: Callable[["Link"], None] = lambda _: None) -> None:
        self.handlers = handlers
        self.pid = 0
        """The process at the other end."""
        self.loop = asyncio.get_running_loop()
        self.lost = self.loop.create_future()
        """Done when the connection has ended."""
        self._made = made
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._encode = msgspec.msgpack.Encoder().encode

    def tell(self, name: str, *arguments: Any, number: int = 0) -> None:
        """Send a message without a result; it is dropped if the connection has ended."""
        if self._transport is not None:
            data = self._encode((number, name, arguments))
            self._transport.write(LENGTH.pack(len(data)) + data)

    async def call(self, name: str, *arguments: Any) -> Any:
        """Return the result of the other process; raises its Refused or UserError, and Refused if it ends."""
        if self._transport is None:
            raise _ended()
        number = next(self._numbers)
        future = self._calls[number] = self.loop.create_future()
        self.tell(name, *arguments, number=number)
        return await future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        credentials = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid, user, _ = struct.unpack("3i", credentials)
        if user != os.getuid():
            transport.abort()  # type: ignore[attr-defined]
            return
        self._transport = cast(asyncio.Transport, transport)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        while end - at >= 4 and end - at - 4 >= (size := LENGTH.unpack_from(data, at)[0]):
            self._take(*msgspec.msgpack.decode(memoryview(data)[at + 4 : at + 4 + size]))
            at += 4 + size
        self._rest = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for future in self._calls.values():
            if not future.done():
                future.set_exception(_ended())
        self._calls.clear()
        if not self.lost.done():
            self.lost.set_result(None)

    # --- messages ---

    def _take(self, number: int, name: str, arguments: list[Any]) -> None:
        if number == 0:
            self.handlers[name](*arguments)
        elif number > 0:
            self._tasks.add(task := self.loop.create_task(self._respond(number, name, arguments)))
            task.add_done_callback(self._tasks.discard)
        elif (future := self._calls.pop(-number, None)) is not None and not future.done():
            if name:
                future.set_exception(_ERRORS[name](*arguments))
            else:
                future.set_result(arguments[0])

    async def _respond(self, number: int, name: str, arguments: list[Any]) -> None:
        try:
            self.tell("", await called(self.handlers[name], arguments), number=-number)
        except UserError as error:
            self.tell("UserError", error.what, error.remedy, number=-number)
        except Exception as error:
            why = reason(error)
            self.tell("Refused", why.code, why.message, number=-number)


async def called(handler: Callable[..., Any], arguments: Iterable[Any]) -> Any:
    """Return the result of a function or coroutine function."""
    result = handler(*arguments)
    return await result if inspect.isawaitable(result) else result


def _ended() -> Refused:
    return Refused("UNAVAILABLE", "the other process of the server has ended")


async def listen(make: Callable[[], Link]) -> tuple[asyncio.Server, str]:
    """Accept connections. Return what does, and the address for `connect`."""
    address = f"inferometer-{secrets.token_hex(16)}"
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("\0" + address)  # uvloop itself cannot use abstract names
    return await asyncio.get_running_loop().create_unix_server(make, sock=sock), address


async def connect(address: str, handlers: Handlers) -> Link:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect("\0" + address)
    _, link = await asyncio.get_running_loop().create_unix_connection(lambda: Link(handlers), sock=sock)
    return link
