"""A client connection: a raw non-blocking socket on the event loop, with kernel receive timestamps and one send() per
write.

A connection handles one request at a time. Pipelined requests are queued, and the next one starts when the previous
response has been sent. Large bodies are received directly into their buffer, and large parts of responses are sent
without a copy. What the kernel does not accept at once is sent when the socket is writable.

The server learns as soon as possible that a client has gone (`gone`), so that it can cancel the work; a client that has
only closed its sending side and waits gets its response. For an HTTP/1.0 client that has closed, the difference cannot
be known before the response begins, so it is assumed to be waiting. `moved` is when the client last made progress. If
it is the client's turn and it does nothing for too long, the connection is given up; the listener checks this
periodically for all connections.

`write` never calls back into the server: a connection that turns out to be broken is closed in the next iteration of
the loop.
"""

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from inferometer.serve.http.parse import Problem, Request, RequestParser
from inferometer.timing.clock import CMSG_SPACE, now, unpack_stamp

if TYPE_CHECKING:
    from inferometer.serve.http.listener import Listener

_READ = 64 * 1024
_PIPELINED = 64
_PIPELINED_BYTES = 1 << 20
"""Maximum pipelined requests per connection, and the bytes of their bodies; beyond that, reading pauses."""
_JOINED = 16 * 1024
"""Pending parts up to this size are merged by copying; larger ones are kept as they are."""
_AT_ONCE = 64
"""Maximum parts per sendmsg()."""
_LINGER_S = 1.0
_RESET = struct.pack("ii", 1, 0)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 1.0
"""Interval between checks for a reset by a client that may be gone: short at first, then longer."""

Data = bytes | bytearray | memoryview


class Handler(Protocol):
    """The interface of the server that a connection calls."""

    def handle(self, connection: "Connection", request: Request) -> None:
        """Respond with `write` and `finish`, now or later."""

    def problem(self, connection: "Connection", problem: Problem) -> None:
        """Respond with the error, then `finish(keep_alive=False)`."""


class Connection:
    """One client connection: reads requests, sends responses, and notices when the client is gone."""

    __slots__ = (
        "_busy", "_closing", "_finished", "_handler", "_has_sent_all", "_in_head", "_interim", "_line", "_listener", "_loop",
        "_out", "_parser", "_paused", "_sock", "between", "closed", "gone", "moved", "peer", "send", "unsent",
    )  # fmt: skip

    def __init__(self, listener: "Listener", sock: socket.socket, peer: str = "") -> None:
        self.between = b""
        """Bytes without meaning that may be sent at any time once a response has begun; b"" if there are none."""
        self.closed = False
        self.gone: Callable[[], None] | None = None
        """Called when the connection is lost before the response is finished."""
        self.moved = now()
        """When the client last sent something expected, or read something, or had been sent a complete response."""
        self.peer = peer
        """The client's address, for the access log."""
        self.send = sock.send
        self.unsent = 0
        """Response bytes that the kernel has not accepted yet."""
        self._sock = sock
        self._listener = listener
        self._loop = listener.loop
        self._handler = listener.handler
        self._parser = RequestParser(listener.limits)
        self._line: deque[Request | Problem] = deque()
        self._out: deque[bytearray | memoryview] = deque()
        self._busy = False
        self._interim: bytes | None = None  # may be sent before a response; None once that has begun
        self._has_sent_all = False  # the client has closed its sending side
        self._finished = False  # the response is complete, but not sent
        self._paused = False
        self._closing = False
        self._in_head = False  # the first bytes of a request's headers have arrived
        self._loop.add_reader(sock, self._readable)

    @property
    def in_flight(self) -> bool:
        """Whether a request is in progress, its response is not sent yet, or the rest of an admitted one is still
        arriving."""
        return not self.closed and (self._busy or self._has_more() or self._parser.is_let_in)

    @property
    def is_leaving(self) -> bool:
        """Whether the last response is sent and the client has not closed yet."""
        return self._closing and not self._busy and not self.closed

    # --- in ----------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        room = self._parser.room
        try:
            if room is None:
                data, ancillary, _, _ = self._sock.recvmsg(_READ, CMSG_SPACE)
                count = len(data)
            else:
                count, ancillary, _, _ = self._sock.recvmsg_into([room], CMSG_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not count:
            self._sent_all()
            return
        if self._closing:
            return  # the last response is being sent; further input is ignored
        arrived = self._arrived(ancillary)
        self._took(self._parser.feed(data, arrived) if room is None else self._parser.filled(count, arrived))

    def _arrived(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        if not ancillary:
            return now()
        seconds, nanoseconds = unpack_stamp(ancillary[0][2])
        return int(seconds * 1_000_000_000 + nanoseconds - self._listener.wall_offset)

    def _took(self, requests: list[Request | Problem]) -> None:
        parser = self._parser
        if requests:
            self._line.extend(requests)
            if not self._busy:
                self._in_head = False
                self._next()
            if self.closed:
                return
            if self._line and self._line_is_full():
                self._pause()
        if parser.is_partial:
            if not self._busy:
                self._came()
            elif parser.room is not None:
                self._pause()  # one large body at a time

    def _came(self) -> None:
        """Note that part of a request arrived. Headers must be complete in time: single bytes of them are not progress."""
        was_in_head, self._in_head = self._in_head, self._parser.is_in_head
        if not (was_in_head and self._in_head):
            self.moved = now()  # not the kernel's timestamp, which follows steps of the wall clock
        if self._parser.wants_continue:
            self._continue()

    def _line_is_full(self) -> bool:
        if len(self._line) > _PIPELINED:
            return True
        return sum(len(one.body) for one in self._line if isinstance(one, Request)) > _PIPELINED_BYTES

    def _pause(self) -> None:
        self._paused = True
        self._loop.remove_reader(self._sock)

    def _continue(self) -> None:
        self._parser.wants_continue = False
        self.write(_CONTINUE)

    def _next(self) -> None:
        if self.closed or self._busy or not self._line:
            return
        request = self._line.popleft()
        self._busy = True
        self._interim, self.between = b"" if isinstance(request, Request) and request.http10 else _CONTINUE, b""
        if isinstance(request, Request):
            self._handler.handle(self, request)
        else:
            self._handler.problem(self, request)

    # --- a client that sends nothing more ----------------------------------------------------------------------------

    def _sent_all(self) -> None:
        """The client has gone, or has closed its sending side and waits for the response. Both look the same until
        something is sent: a client that has gone answers with a reset."""
        if not self._busy and not self._line:
            self.close()
            return
        self._has_sent_all = True
        self._loop.remove_reader(self._sock)
        if self._busy and not self._finished and not self._has_more():
            harmless = self.between if self._interim is None else self._interim
            if harmless:
                self.write(harmless)
            elif self._interim is None:  # cannot find out whether the client is still there
                self.close()
                return
        self._look_for_reset(_FIRST_LOOK_S)

    def _look_for_reset(self, wait: float) -> None:
        """Check periodically, because the loop reports nothing more about a socket at end-of-file."""
        if self.closed:
            return
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.close()
        else:
            self._loop.call_later(wait, self._look_for_reset, min(2 * wait, _LAST_LOOK_S))

    # --- out ---------------------------------------------------------------------------------------------------------

    def write(self, data: Data, *more: Data) -> None:
        """Send the parts in order. Large ones are kept without a copy: do not modify them afterwards."""
        self._interim = None
        if more or self._out:
            self._write_all((data, *more))
            return
        try:
            sent = self.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._loop.call_soon(self.close)
            return
        if sent < len(data) and not self.closed:
            self.moved = now()
            self._keep(memoryview(data)[sent:])
            self._loop.add_writer(self._sock, self._writable)

    def _write_all(self, parts: tuple[Data, ...]) -> None:
        if self.closed:
            return
        is_first = not self._out
        if is_first:
            self.moved = now()
        for part in parts:
            self._keep(memoryview(part))
        if is_first and self._send_some() and self._out:
            self._loop.add_writer(self._sock, self._writable)

    def _keep(self, data: memoryview) -> None:
        if not len(data):
            return
        self.unsent += data.nbytes
        if data.nbytes > _JOINED:
            self._out.append(data)
        elif self._out and isinstance(self._out[-1], bytearray) and len(self._out[-1]) < 4 * _JOINED:
            self._out[-1] += data
        else:
            self._out.append(bytearray(data))

    def _send_some(self) -> bool:
        """Send what the kernel accepts; return False if the connection is broken."""
        try:
            sent = self._sock.sendmsg(list(islice(self._out, _AT_ONCE)))
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            self._loop.call_soon(self.close)
            self._out.clear()
            return False
        self.unsent -= sent
        self.moved = now()
        out = self._out
        while sent:
            first = out[0]
            if len(first) > sent:
                if isinstance(first, bytearray):
                    del first[:sent]
                else:
                    out[0] = first[sent:]
                break
            sent -= len(first)
            out.popleft()
        return True

    def finish(self, keep_alive: bool = True) -> None:
        """End the response: continue with the next request, or close, once everything is sent."""
        self.gone = None
        if self.closed:
            self._busy = False
            return
        if not keep_alive:
            self._closing = True
            self._line.clear()
        if self._has_more():
            self._finished = True
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Continue after a response has been sent."""
        self._busy = self._finished = False
        self.moved = now()
        if self._closing:
            self._linger()
        elif self._line:
            self._loop.call_soon(self._next)
        elif self._has_sent_all:
            self._closing = True
            self._linger()
        elif self._paused:
            self._paused = False
            self._loop.add_reader(self._sock, self._readable)
        if self._parser.wants_continue and not self._line and not self._closing:
            self._continue()

    def _has_more(self) -> bool:
        """Whether response bytes are waiting for the kernel."""
        return bool(self._out)

    def _writable(self) -> None:
        if not self._send_some():
            self._loop.remove_writer(self._sock)
            return
        if not self._out:
            self._loop.remove_writer(self._sock)
            self._drained()

    def _drained(self) -> None:
        if self._finished:
            self._go_on()

    def _linger(self) -> None:
        """Close our side, and the rest when the client does: closing with unread bytes would discard our response."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self._loop.call_later(0 if self._has_sent_all else _LINGER_S, self.close)

    # --- patience ----------------------------------------------------------------------------------------------------

    def give_up_if_late(self, idle: int, stalled: int, at: int) -> None:
        """Give up if it is the client's turn and it made no progress for this many ns as of `at`. Computing is the
        server's turn."""
        silent = at - self.moved
        if self._has_more():
            if silent > stalled:
                self._give_up_answer()
        elif self._busy or self._closing:
            return
        elif silent > (stalled if self._is_awaited() else idle) and not self._has_come():
            if self._is_awaited():
                self._give_up_request()
            else:
                self.close()

    def _is_awaited(self) -> bool:
        """Whether the rest of a request is expected."""
        return self._parser.is_partial

    def _has_come(self) -> bool:
        """Whether data is waiting to be read: then the server is late, not the client."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:  # reading will report it
            return True
        return True

    def _give_up_request(self) -> None:
        seconds = self._listener.limits.stalled
        if self._in_head:
            why = f"the request headers were not complete within {seconds:g} s"
        else:
            why = f"the request is not complete, and no data arrived for {seconds:g} s"
        self._line.append(self._parser.give_up(408, why, self.moved))
        self._next()

    def _give_up_answer(self) -> None:
        """Reset the connection of a client that does not read: the kernel can drop its copy of the response."""
        moved = self.moved
        self._writable()
        if self.moved == moved and not self.closed:
            self._let_go_of_the_rest()
            self.close()

    # --- refusing ----------------------------------------------------------------------------------------------------

    def let_in(self) -> None:
        """Admit a request whose headers have arrived, since new requests are refused from now on. (A client that has
        pipelined another request learns from the response that it is the last.)"""
        if not self._busy:
            self._parser.let_in()

    def refuse_partial(self, why: str) -> bool:
        """Refuse a request that is still arriving. Return False if there is none."""
        if self._busy or self._closing or not self._parser.is_partial:
            return False
        self._line.append(self._parser.give_up(503, why, self.moved))
        self._next()
        return True

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._parser.close()
        self._out.clear()
        self._listener.connections.discard(self)
        if self.gone is not None:
            gone, self.gone = self.gone, None
            gone()

    def hang_up(self) -> None:
        """Close at once in an orderly way, even if the response is incomplete."""
        self.gone = None
        self.close()

    def reset(self) -> None:
        """Close with RST."""
        self.gone = None
        if not self.closed:
            self._let_go_of_the_rest()
        self.close()

    def _let_go_of_the_rest(self) -> None:
        """Discard unsent data: closing sends RST then."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
