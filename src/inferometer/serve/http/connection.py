"""HTTP/1.1 on a transport: one request at a time, parsed by parse.py and handled by the server (web.py).

A client that closes the connection before its response is complete is gone (`gone`), so that its work can be cancelled.
A pipelined request waits until the previous response has been sent; nothing more is read meanwhile.
"""

from collections.abc import Callable
from typing import Any

from inferometer.serve import access
from inferometer.serve.http.parse import Problem, Request, RequestParser
from inferometer.serve.settings import Limits
from inferometer.serve.sockets.transport import Data, Transport
from inferometer.timing.clock import now

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def connections(handler: Any, limits: Limits | None = None, log: bool = False) -> Callable[[Transport], "Connection"]:
    """Return a listener's `make_protocol`; with `log`, each request is written to the access log.

    `handler.handle(connection, request)` responds to a request with `write` and `finish`, now or later.
    `handler.problem(connection, request, problem)` responds with an error, then `finish(keep_alive=False)`; the request is
    incomplete.
    """
    kind, chosen = LoggedConnection if log else Connection, limits or Limits()
    return lambda transport: kind(transport, handler, chosen)


class Connection:
    """One client connection: reads requests, sends responses, and notices when the client is gone."""

    __slots__ = (
        "_handler", "_in_head", "_is_closing", "_is_finished", "_limits", "_parser", "_request", "gone", "room", "transport",
        "write",
    )  # fmt: skip

    def __init__(self, transport: Transport, handler: Any, limits: Limits) -> None:
        self.gone: Callable[[], object] | None = None
        """Called when the connection is lost before the response is finished."""
        self.room: memoryview | None = None
        self.transport = transport
        self.write: Callable[..., None] = transport.write
        """Send parts of a response: see Transport.write."""
        self._handler, self._limits = handler, limits
        self._parser = RequestParser(limits)
        self._request: Request | None = None  # in progress
        self._is_finished = False  # the response is complete, but not sent
        self._is_closing = False
        self._in_head = False  # the first bytes of a request's headers have arrived

    # --- in ----------------------------------------------------------------------------------------------------------

    def received(self, data: bytes, arrived: int) -> None:
        if self._is_closing:
            return
        if self._request is not None:
            self._parser.keep(data, arrived)
            self.transport.pause_reading()
            return
        try:
            request = self._parser.feed(data, arrived)
        except Problem as problem:
            self._refuse(problem, arrived)
            return
        if request is None:
            self._took_part()
        else:
            self._in_head = False
            self._request = request
            self._handler.handle(self, request)

    def filled(self, count: int, arrived: int) -> None:
        request = self._parser.filled(count, arrived)
        if request is None:
            self._took_part()
        else:
            self.room, self._request = None, request
            self._handler.handle(self, request)

    def _took_part(self) -> None:
        """Note that part of a request arrived."""
        self.room = self._parser.room
        was_in_head, self._in_head = self._in_head, self._parser.is_in_head
        if not (was_in_head and self._in_head):  # headers must be complete in time: single bytes are not progress
            self.transport.moved = now()
        if self._parser.wants_continue:
            self._parser.wants_continue = False
            self.write(CONTINUE)
        self.transport.resume_reading()

    def _refuse(self, problem: Problem, arrived: int) -> None:
        self.room = None
        self._request = request = self._parser.request or Request()
        request.arrived = arrived
        self._handler.problem(self, request, problem)

    def ended(self) -> None:
        """Close, unless the response is complete and only has to be sent."""
        self._is_closing = True
        if not self._is_finished:
            self.transport.close()

    # --- out ---------------------------------------------------------------------------------------------------------

    def finish(self, keep_alive: bool = True) -> None:
        """End the response: continue with the next request, or close, once everything is sent."""
        self.gone = None
        if not keep_alive:
            self._is_closing = True
        if self.transport.closed:
            self._request = None
        elif self.transport.unsent:
            self._is_finished = True
        else:
            self._go_on()

    def drained(self) -> None:
        if self._is_finished:
            self._go_on()

    def _go_on(self) -> None:
        """Continue after a response has been sent."""
        self._request, self._is_finished = None, False
        transport = self.transport
        transport.moved = now()
        if self._is_closing:
            transport.linger()
        elif self._parser.rest:
            transport.loop.call_soon(self._next)
        elif not transport.is_reading:
            transport.resume_reading()

    def _next(self) -> None:
        """Continue with what was kept meanwhile."""
        if not self.transport.closed and self._request is None:
            self.received(b"", self._parser.kept_at)

    # --- patience and shutting down ----------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        return self.is_idle and self._parser.is_partial

    @property
    def is_idle(self) -> bool:
        return self._request is None and not self._is_closing

    @property
    def in_flight(self) -> bool:
        has_begun = self.is_waiting and not self._parser.is_in_head
        return not self.transport.closed and (self._request is not None or self.transport.unsent > 0 or has_begun)

    def late(self) -> None:
        what = "request headers were" if self._in_head else "request was"
        why = f"the {what} not complete, and no progress was made for {self._limits.stalled:g} s"
        self._refuse(Problem(408, why), self.transport.moved)

    def refuse_partial(self, why: str) -> bool:
        if self.is_waiting:
            self._refuse(Problem(503, why), self.transport.moved)
            return True
        return False

    # --- the end -----------------------------------------------------------------------------------------------------

    def lost(self) -> None:
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
    """A connection that writes to the access log when a response is finished, or its client is gone."""

    __slots__ = ("_status",)

    def __init__(self, transport: Transport, handler: Any, limits: Limits) -> None:
        super().__init__(transport, handler, limits)
        self.write = self._write
        self._status = ""

    def _write(self, data: Data, *more: Data) -> None:
        if not self._status and data is not CONTINUE:
            self._status = bytes(data[9:12]).decode("latin-1")
        self.transport.write(data, *more)

    def finish(self, keep_alive: bool = True) -> None:
        self._log()
        super().finish(keep_alive)

    def lost(self) -> None:
        super().lost()
        self._log()

    def _log(self) -> None:
        one, self._request = self._request, None
        if one is not None:
            status, self._status = self._status or "499", ""
            method, path = one.method.decode("latin-1"), one.path.decode("latin-1")
            access.log(self.transport.peer, method, path, status, one.arrived)
