"""Raw non-blocking sockets on the loop: bytes in with the kernel's receive stamp, bytes out in one send() each.

A connection answers one request at a time; pipelined ones wait in line. What the kernel does not take at once goes out when
it can. A client that goes away is told to the server at once (`gone`), so that its work is cancelled.

Nothing here calls the server back from within `write`: a connection that turns out to be broken is closed in the loop's
next round.
"""

import asyncio
import contextlib
import errno
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

from inferometer.serve.http.parse import Problem, Request, RequestParser
from inferometer.timing import clock
from inferometer.timing.clock import CMSG_SPACE, now, unpack_stamp

_READ = 64 * 1024
_BACKLOG = 4096
_PIPELINED = 64
"""Requests that may wait in line on a connection; beyond that it is not read from."""
_LINGER_S = 1.0
_RESET = struct.pack("ii", 1, 0)


class Handler(Protocol):
    """What a connection needs of the server."""

    def handle(self, connection: "Connection", request: Request) -> None:
        """Answer it with `write` and `finish`, now or later."""

    def problem(self, connection: "Connection", problem: Problem) -> None:
        """Say so, and `finish(keep_alive=False)`."""


class Connection:
    __slots__ = (
        "_busy", "_closing", "_handler", "_line", "_listener", "_loop", "_out", "_parser", "_paused", "_sock", "closed",
        "gone", "send",
    )  # fmt: skip

    def __init__(self, listener: "Listener", sock: socket.socket) -> None:
        self.closed = False
        self.gone: Callable[[], None] | None = None
        """Called when the connection is lost before the answer is finished."""
        self.send = sock.send
        self._sock = sock
        self._listener = listener
        self._loop = listener.loop
        self._handler = listener.handler
        self._parser = RequestParser()
        self._line: deque[Request | Problem] = deque()
        self._out = bytearray()
        self._busy = False
        self._paused = False
        self._closing = False
        self._loop.add_reader(sock, self._readable)

    # --- in ----------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(_READ, CMSG_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not data:
            self.close()
            return
        if self._closing:
            return  # an answer that closes is on its way out; what still comes in is not for us
        if ancillary:
            seconds, nanoseconds = unpack_stamp(ancillary[0][2])
            arrived = seconds * 1_000_000_000 + nanoseconds - self._listener.wall_offset
        else:
            arrived = now()
        requests = self._parser.feed(data, arrived)
        if requests:
            self._line.extend(requests)
            if not self._busy:
                self._next()
            if len(self._line) > _PIPELINED and not self.closed:
                self._paused = True
                self._loop.remove_reader(self._sock)
        if self._parser.wants_continue and not self._busy and not self.closed:
            self._parser.wants_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _next(self) -> None:
        if self.closed or self._busy or not self._line:
            return
        request = self._line.popleft()
        self._busy = True
        if isinstance(request, Request):
            self._handler.handle(self, request)
        else:
            self._handler.problem(self, request)

    # --- out ---------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._out:
            self._out += data
            return
        try:
            sent = self.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._loop.call_soon(self.close)
            return
        if sent < len(data) and not self.closed:
            self._out += data[sent:]
            self._loop.add_writer(self._sock, self._writable)

    def finish(self, keep_alive: bool = True) -> None:
        """The answer is complete: go on with the next request, or close once all is out."""
        self._busy = False
        self.gone = None
        if self.closed:
            return
        if not keep_alive:
            self._closing = True
            self._line.clear()
            if not self._out:
                self._linger()
        elif self._line:
            self._loop.call_soon(self._next)
        elif self._paused:
            self._paused = False
            self._loop.add_reader(self._sock, self._readable)

    def _writable(self) -> None:
        try:
            del self._out[: self.send(self._out)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not self._out:
            self._loop.remove_writer(self._sock)
            if self._closing:
                self._linger()

    def _linger(self) -> None:
        """Close our side, and the rest when the client does: closing over unread bytes would take our answer with it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self._loop.call_later(_LINGER_S, self.close)

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._parser.close()
        self._listener.connections.discard(self)
        if self.gone is not None:
            gone, self.gone = self.gone, None
            gone()

    def hang_up(self) -> None:
        """Close at once in the orderly way, whatever was promised."""
        self.gone = None
        self.close()

    def reset(self) -> None:
        """Close with RST."""
        self.gone = None
        if not self.closed:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()


class Listener:
    """The listening socket and all its connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, handler: Handler) -> None:
        self.loop = loop
        self.handler = handler
        self.connections: set[Connection] = set()
        self.wall_offset = clock.wall_offset()
        self._primed = clock.prime()
        self._sock = sock
        sock.listen(_BACKLOG)
        loop.add_reader(sock, self._acceptable)
        self._resample()

    def close(self) -> None:
        self.loop.remove_reader(self._sock)
        self._sock.close()
        self._timer.cancel()
        if self._primed is not None:
            self._primed.close()
        for connection in list(self.connections):
            connection.close()

    def _acceptable(self) -> None:
        for _ in range(256):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):  # wait for some to close rather than spin
                    self.loop.remove_reader(self._sock)
                    self.loop.call_later(0.1, self._accept_again)
                return
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._primed is not None:
                clock.ask_for_stamps(sock)
            self.connections.add(Connection(self, sock))

    def _accept_again(self) -> None:
        if self._sock.fileno() >= 0:
            self.loop.add_reader(self._sock, self._acceptable)

    def _resample(self) -> None:
        """The wall clock may be stepped; the kernel's stamps are of it."""
        self.wall_offset = clock.wall_offset()
        self._timer = self.loop.call_later(1.0, self._resample)
