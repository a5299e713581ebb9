"""HTTP/1.1 on a transport: one request at a time, parsed by parse.py and handled by a `Handler`.

Pipelined requests are queued, and the next one starts when the previous response has been sent.

The server learns as soon as possible that a client has gone (`gone`), so that it can cancel the work; a client that has
only closed its sending side and waits gets its response. For an HTTP/1.0 client that has closed, the difference cannot
be known before the response begins, so it is assumed to be waiting.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from inferometer.serve.http.parse import Problem, Request, RequestParser
from inferometer.serve.settings import Limits
from inferometer.serve.sockets.transport import Data, Transport
from inferometer.timing.clock import now

_PIPELINED = 64
_PIPELINED_BYTES = 1 << 20
"""Maximum pipelined requests per connection, and the bytes of their bodies; beyond that, reading pauses."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Handler(Protocol):
    """The interface of the server that a connection calls."""

    def handle(self, connection: "Connection", request: Request) -> None:
        """Respond with `write` and `finish`, now or later."""

    def problem(self, connection: "Connection", problem: Problem) -> None:
        """Respond with the error, then `finish(keep_alive=False)`."""


def connections(
    handler: Handler, limits: Limits | None = None, log: bool = False
) -> Callable[[Transport], "Connection"]:
    """Return a listener's `make_protocol`; with `log`, each request is written to the access log."""
    kind, chosen = LoggedConnection if log else Connection, limits or Limits()
    return lambda transport: kind(transport, handler, chosen)


class Connection:
    """One client connection: reads requests, sends responses, and notices when the client is gone."""

    __slots__ = (
        "_busy", "_closing", "_finished", "_handler", "_in_head", "_limits", "_line", "_loop", "_parser", "_request",
        "between", "gone", "room", "transport", "write",
    )  # fmt: skip

    def __init__(self, transport: Transport, handler: Handler, limits: Limits) -> None:
        self.between = b""
        """Bytes without meaning that may be sent at any time once a response has begun; b"" if there are none."""
        self.gone: Callable[[], None] | None = None
        """Called when the connection is lost before the response is finished."""
        self.room: memoryview | None = None
        self.transport = transport
        self.write: Callable[..., None] = transport.write
        """Send parts of a response: see Transport.write."""
        self._loop = transport.loop
        self._handler = handler
        self._limits = limits
        self._parser = RequestParser(limits)
        self._line: deque[Request | Problem] = deque()
        self._request: Request | Problem | None = None
        self._busy = False
        self._finished = False  # the response is complete, but not sent
        self._closing = False
        self._in_head = False  # the first bytes of a request's headers have arrived

    @property
    def closed(self) -> bool:
        return self.transport.closed

    @property
    def unsent(self) -> int:
        """Response bytes that the kernel has not accepted yet."""
        return self.transport.unsent

    @property
    def peer(self) -> str:
        return self.transport.peer

    # --- in ----------------------------------------------------------------------------------------------------------

    def received(self, data: bytes, arrived: int) -> None:
        if self._busy or self._closing or self._line or (request := self._parser.repeated(data)) is None:
            if not self._closing:
                self._took(self._parser.feed(data, arrived))
        else:  # the short path
            request.arrived = arrived
            self._start(request)

    def filled(self, count: int, arrived: int) -> None:
        if not self._closing:
            self._took(self._parser.filled(count, arrived))

    def _took(self, requests: list[Request | Problem]) -> None:
        parser = self._parser
        self.room = parser.room
        if requests:
            self._line.extend(requests)
            if not self._busy:
                self._in_head = False
                self._next()
            if self.transport.closed:
                return
            if self._line and self._line_is_full():
                self.transport.pause_reading()
        if parser.is_partial:
            if not self._busy:
                self._came()
            elif parser.room is not None:
                self.transport.pause_reading()  # one large body at a time

    def _came(self) -> None:
        """Note that part of a request arrived. Headers must be complete in time: single bytes of them are not progress."""
        was_in_head, self._in_head = self._in_head, self._parser.is_in_head
        if not (was_in_head and self._in_head):
            self.transport.moved = now()
        if self._parser.wants_continue:
            self._continue()

    def _line_is_full(self) -> bool:
        if len(self._line) > _PIPELINED:
            return True
        return sum(len(one.body) for one in self._line if isinstance(one, Request)) > _PIPELINED_BYTES

    def _continue(self) -> None:
        self._parser.wants_continue = False
        self.write(CONTINUE)

    def _next(self) -> None:
        if self.transport.closed or self._busy or not self._line:
            return
        self._start(self._line.popleft())

    def _start(self, request: Request | Problem) -> None:
        self._request, self._busy, self.between = request, True, b""
        self.transport.wrote = False
        if isinstance(request, Request):
            self._handler.handle(self, request)
        else:
            self._handler.problem(self, request)

    def ended(self) -> None:
        """Send something harmless to a client that may wait: one that has gone answers with a reset."""
        if not self._busy and not self._line:
            self.transport.close()
        elif self._busy and not self._finished and not self.transport.unsent:
            has_begun = self.transport.wrote
            is_old = isinstance(self._request, Request) and self._request.http10
            harmless = self.between if has_begun else b"" if is_old else CONTINUE
            if harmless:
                self.write(harmless)
            elif has_begun:  # cannot find out whether the client is still there
                self.transport.close()

    # --- out ---------------------------------------------------------------------------------------------------------

    def finish(self, keep_alive: bool = True) -> None:
        """End the response: continue with the next request, or close, once everything is sent."""
        self.gone = None
        if self.transport.closed:
            self._busy = False
            return
        if not keep_alive:
            self._closing = True
            self._line.clear()
        if self.transport.unsent:
            self._finished = True
        else:
            self._go_on()

    def drained(self) -> None:
        if self._finished:
            self._go_on()

    def _go_on(self) -> None:
        """Continue after a response has been sent."""
        self._busy = self._finished = False
        self._request = None
        transport = self.transport
        transport.moved = now()
        if self._closing:
            transport.linger()
        elif self._line:
            self._loop.call_soon(self._next)
        elif transport.has_ended:
            self._closing = True
            transport.linger()
        else:
            transport.resume_reading()
        if self._parser.wants_continue and not self._line and not self._closing:
            self._continue()

    # --- patience and shutting down ----------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        return self._parser.is_partial and not self._busy and not self._closing

    @property
    def is_idle(self) -> bool:
        return not self._busy and not self._closing

    def late(self) -> None:
        seconds = self._limits.stalled
        if self._in_head:
            why = f"the request headers were not complete within {seconds:g} s"
        else:
            why = f"the request is not complete, and no data arrived for {seconds:g} s"
        self._give_up(408, why)

    def _give_up(self, status: int, why: str) -> None:
        self._line.append(self._parser.give_up(status, why, self.transport.moved))
        self._next()

    @property
    def in_flight(self) -> bool:
        return not self.closed and (self._busy or self.unsent > 0 or self._parser.is_let_in)

    def let_in(self) -> None:
        """Admit a request whose headers have arrived. (A client that has pipelined another request learns from the
        response that it is the last.)"""
        if not self._busy:
            self._parser.let_in()

    def refuse_partial(self, why: str) -> bool:
        if not self.is_waiting:
            return False
        self._give_up(503, why)
        return True

    # --- the end -----------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        self._parser.close()
        if self.gone is not None:
            gone, self.gone = self.gone, None
            gone()

    def hang_up(self) -> None:
        """Close at once in an orderly way, even if the response is incomplete."""
        self.gone = None
        self.transport.close()

    def reset(self) -> None:
        """Close with RST."""
        self.gone = None
        self.transport.reset()


class LoggedConnection(Connection):
    """A connection that writes a line to standard error when a response is finished, or its client is gone.

    The line has the time, client, method, path, status, bytes sent, and milliseconds from arrival to the end of the
    response; "-" if invalid bytes have no such value. It contains no headers and no bodies.
    """

    __slots__ = ("_sent", "_status")

    def __init__(self, transport: Transport, handler: Handler, limits: Limits) -> None:
        super().__init__(transport, handler, limits)
        self.write = self._write
        self._sent, self._status = 0, ""

    def _start(self, request: Request | Problem) -> None:
        self._sent, self._status = 0, "499"  # until there is a response
        super()._start(request)

    def _write(self, data: Data, *more: Data) -> None:
        if not self._sent and data is not CONTINUE:
            self._status = bytes(data[9:12]).decode("latin-1")
        if data is not CONTINUE:
            self._sent += len(data) + sum(map(len, more))
        self.transport.write(data, *more)

    def finish(self, keep_alive: bool = True) -> None:
        self._log()
        super().finish(keep_alive)

    def lost(self) -> None:
        super().lost()
        self._log()

    def reset(self) -> None:
        self._log()
        super().reset()

    def _log(self) -> None:
        one, self._request = self._request, None
        if one is None:
            return
        request = one if isinstance(one, Request) else one.request
        words = (
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            self.peer or "-",
            request.method.decode("latin-1") or "-",
            request.path.partition(b"?")[0].decode("ascii", "backslashreplace") or "-",
            self._status,
            str(self._sent),
            f"{(now() - request.arrived) / 1e6:.3f}",
        )
        sys.stderr.write(" ".join(words) + "\n")
