"""A connection between two processes of the server: messages, calls that return a result, and streams of results.

A message is its length and msgpack of [number, name, arguments]. The number is 0 for a message without a result, positive
for a call, and that number negated for what comes back: a "part" of a stream, the result (""), or the kind of the error.

The sockets have no names, or abstract ones, so that nothing is left in the file system, and both sides accept only
processes of their own user.

Small tensors are inside the message, large ones in shared memory. The sender copies these into a segment, a memfd of its
own; the receiver maps it as /proc/PID/fd/NUMBER and uses it in place. When nothing refers to the receiver's view any
longer, the sender may use the segment again. No segment has a name, so none outlives the processes.
"""

import asyncio
import inspect
import itertools
import mmap
import os
import socket
import struct
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from inferometer.errors import UserError
from inferometer.serve.models.types import Refused, ignore, reason
from inferometer.serve.offload import result_of
from inferometer.tensors import Tensor

Handlers = dict[str, Callable[..., Any]]
Callback = Callable[..., None]
_LENGTH = struct.Struct("<I")
_ERRORS: dict[str, Callable[..., Exception]] = {"Refused": Refused, "UserError": UserError}
_INLINE = 32 << 10
"""Bytes up to which a message carries its tensors itself."""
_ALIGN, _SMALLEST = 64, 1 << 20
_IDLE = 256 << 20
"""Bytes of unused segments that are kept for the next tensors: new memory costs many times the copy."""

Packed = tuple[int, int, list[tuple[Any, ...]]]
"""A process id, the number of its segment (-1: none), and the tensors."""


class Link(asyncio.Protocol):
    """One end of a connection. `handlers` are called by name with the arguments of a message or call. `streams` are
    coroutine functions whose first argument is a function that sends a part of the result."""

    def __init__(self, handlers: Handlers, other: str = "the other process of the server") -> None:
        self.handlers, self.other = handlers, other
        self.streams: Handlers = {}
        self.loop = asyncio.get_running_loop()
        self.lost = self.loop.create_future()  # done when the connection has ended
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._numbers = itertools.count(1)
        self._calls: dict[int, tuple[Callback, Callback]] = {}
        self._running: dict[int, asyncio.Task[Any]] = {}  # what the other process has called

    def tell(self, name: str, *arguments: Any, number: int = 0) -> None:
        """Send a message without a result; it is dropped if the connection has ended."""
        if self._transport is not None:
            data = msgspec.msgpack.encode((number, name, arguments))
            self._transport.write(_LENGTH.pack(len(data)) + data)

    def start(self, name: str, *arguments: Any, done: Callback, part: Callback = ignore) -> int:
        """Start a stream, or a call. Return its number for `tell("cancel", number)`; it ends with `done` all the same.
        It fails with Refused if the connection ends."""
        number = next(self._numbers)
        self._calls[number] = part, done
        self.tell(name, *arguments, number=number)
        if self._transport is None:
            self.loop.call_soon(self._fail)
        return number

    async def call(self, name: str, *arguments: Any) -> Any:
        """Return the result of the other process; raises its Refused or UserError, and Refused if it ends."""
        return await result_of(lambda done: self.start(name, *arguments, done=done))

    def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        credentials = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self._transport = cast(asyncio.Transport, transport)
        if struct.unpack("3i", credentials)[1] != os.getuid():
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        while end - at >= 4 and end - at - 4 >= (size := _LENGTH.unpack_from(data, at)[0]):
            self._take(*msgspec.msgpack.decode(memoryview(data)[at + 4 : at + 4 + size]))
            at += 4 + size
        self._rest = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.lost.set_result(None)
        for task in self._running.values():
            task.cancel()
        self.loop.call_soon(self._fail)  # after what waits for `lost`

    def _fail(self) -> None:
        while self._calls:
            self._calls.popitem()[1][1](None, Refused("UNAVAILABLE", f"{self.other} ended"))

    def _take(self, number: int, name: str, arguments: list[Any]) -> None:
        if number > 0:
            self._running[number] = self.loop.create_task(self._run(number, name, arguments))
        elif number < 0 and name == "part":
            self._calls[-number][0](*arguments)
        elif number < 0:
            done = self._calls.pop(-number)[1]
            done(None, _ERRORS[name](*arguments)) if name else done(arguments[0], None)
        elif name != "cancel":
            self.handlers[name](*arguments)
        elif arguments[0] in self._running:  # cancel it once it has begun, so that it has taken its arguments
            self.loop.call_soon(self._running[arguments[0]].cancel)

    async def _run(self, number: int, name: str, arguments: list[Any]) -> None:
        reply = partial(self.tell, number=-number)
        try:
            if name in self.streams:
                reply("", await self.streams[name](partial(reply, "part"), *arguments))
            elif name in self.handlers:
                reply("", await called(self.handlers[name], arguments))
            else:
                reply("Refused", "UNAVAILABLE", "the server is starting")
        except asyncio.CancelledError:
            reply("Refused", "CANCELLED", "the request was cancelled")
        except UserError as error:
            reply("UserError", error.what, error.remedy)
        except Exception as error:
            why = reason(error)
            reply("Refused", why.code, why.message, why.label)
        finally:
            del self._running[number]


async def called(handler: Callable[..., Any], arguments: Iterable[Any]) -> Any:
    result = handler(*arguments)
    return await result if inspect.isawaitable(result) else result


async def attach(sock: socket.socket, handlers: Handlers, other: str = "the server") -> Link:
    return (await asyncio.get_running_loop().create_unix_connection(lambda: Link(handlers, other), sock=sock))[1]


class Segments:
    """The segments of one end of a link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._own: dict[int, mmap.mmap] = {}  # by the number of their file
        self._idle: dict[int, int] = {}  # the sizes of those that are unused, longest unused first
        self._mapped: dict[int, mmap.mmap] = {}  # the other process' segments
        link.handlers |= {"unused": self.unused, "dropped": lambda number: self._mapped.pop(number, None)}
        link.lost.add_done_callback(lambda _: self._close())

    def pack(self, tensors: Iterable[Tensor]) -> Packed:
        """Return the arguments for `unpack`. May be called in any thread, since it may copy a lot."""
        given = list(tensors)
        sizes = [len(tensor.data) for tensor in given]
        if sum(sizes) <= _INLINE:
            return 0, -1, [(one.name, one.datatype, one.shape, one.data) for one in given]
        number = self._take(sum(size + -size % _ALIGN for size in sizes))
        memory, at, packed = np.frombuffer(self._own[number], np.uint8), 0, []
        for one, size in zip(given, sizes, strict=True):
            if size:
                memory[at : at + size] = np.frombuffer(one.data, np.uint8)  # without the interpreter's lock
            packed.append((one.name, one.datatype, one.shape, (at, size)))
            at += size + -size % _ALIGN
        return os.getpid(), number, packed

    def unpack(self, pid: int, number: int, packed: list[Any]) -> dict[str, Tensor]:
        """Return the tensors that the other process has packed."""
        if number >= 0:
            if number not in self._mapped:
                with Path(f"/proc/{pid}/fd/{number}").open("r+b") as file:
                    self._mapped[number] = mmap.mmap(file.fileno(), 0)
            whole = np.frombuffer(self._mapped[number], np.uint8)
            weakref.finalize(whole, self._free, number)
            packed = [(name, kind, shape, whole[at : at + size].data) for name, kind, shape, (at, size) in packed]
        return {name: Tensor(name, kind, tuple(shape), data) for name, kind, shape, data in packed}

    def unused(self, number: int) -> None:
        """Keep our segment for the next tensors: the other process has no use for it any longer, or never got it."""
        if number in self._own:
            self._idle[number] = len(self._own[number])
        while sum(self._idle.values()) > _IDLE:
            old = next(iter(self._idle))
            if self._idle.pop(old, 0):  # see `_take`
                self._link.tell("dropped", old)
                del self._own[old]
                os.close(old)

    def _take(self, size: int) -> int:
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        for number, has in reversed(list(self._idle.items())):  # the last one used is still in the processor's cache
            if has == capacity and self._idle.pop(number, 0):  # another thread may have taken it
                return number
        number = os.memfd_create("inferometer")
        os.truncate(number, capacity)
        self._own[number] = mmap.mmap(number, capacity)
        return number

    def _free(self, number: int) -> None:
        """Tell the owner that nothing uses its segment any longer; called in any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._link.loop.call_soon_threadsafe(self._link.tell, "unused", number)

    def _close(self) -> None:
        for number in self._own:
            os.close(number)  # the mappings go when nothing refers to them
        self._own, self._idle, self._mapped = {}, {}, {}
