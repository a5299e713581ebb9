"""HTTP/1.1 on a transport: one request at a time, parsed by wire/http1_requests.py and handled by the server (web.py).

A client that closes the connection before its response is complete is gone (`gone`), so that its work can be cancelled.
A pipelined request waits until the previous response has been sent; nothing more is read meanwhile.
"""

from collections.abc import Callable
from typing import Any

from inferometer.serve import access
from inferometer.serve.settings import Limits
from inferometer.serve.sockets.transport import Data, Transport
from inferometer.timing.clock import now
from inferometer.wire.http1_requests import Problem, Request, RequestParser

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """One client connection: reads requests, sends responses, and notices when the client is gone.

    `handler.handle(connection, request)` responds to a request with `write` and `finish`, now or later.
    `handler.problem(connection, request, problem)` responds with an error, then `finish(keep_alive=False)`; the request is
    incomplete. With `log`, each request is written to the access log.
    """

    __slots__ = ("_handler", "_is_logged", "_parser", "_request", "_status", "gone", "room", "transport", "write")

    def __init__(self, transport: Transport, handler: Any, limits: Limits, log: bool = False) -> None:
        self.gone: Callable[[], object] | None = None
        """Called when the connection is lost before the response is finished."""
        self.room: memoryview | None = None
        self.transport = transport
        self.write: Callable[..., None] = self._write_logged if log else transport.write
        """Send parts of a response: see Transport.write."""
        self._handler = handler
        self._parser = RequestParser(limits.head, limits.message)
        self._request: Request | None = None  # in progress
        self._is_logged, self._status = log, ""

    def received(self, data: bytes, arrived: int) -> None:
        if self._request is not None or self.transport.unsent:
            self._parser.keep(data, arrived)
            self.transport.pause_reading()
            return
        try:
            request = self._parser.feed(data, arrived)
        except Problem as problem:
            self._request = request = self._parser.request or Request()
            request.arrived = arrived
            self._handler.problem(self, request, problem)
            return
        if request is None:
            self._took_part()
        else:
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
        self.transport.moved = now()
        if self._parser.wants_continue:
            self._parser.wants_continue = False
            self.transport.write(_CONTINUE)
        self.transport.resume_reading()

    def finish(self, keep_alive: bool = True) -> None:
        """End the response: continue with the next request, or close, once everything is sent."""
        self.gone = None
        if self._is_logged:
            self._log()
        self._request = None
        if not keep_alive:
            self.transport.linger()
        elif not self.transport.unsent:
            self.drained()

    def drained(self) -> None:
        """Continue after a response, if it is complete and has been sent."""
        transport = self.transport
        if self._request is None:
            transport.moved = now()
            if self._parser.rest:
                transport.loop.call_soon(self._take_rest)
            elif not transport.is_reading:
                transport.resume_reading()

    def _take_rest(self) -> None:
        # More may have arrived meanwhile, with which the rest was parsed.
        if self._parser.rest and self._request is None and not self.transport.closed:
            self.received(b"", self._parser.kept_at)

    def _write_logged(self, data: Data, *more: Data) -> None:
        self._status = self._status or bytes(data[9:12]).decode("latin-1")
        self.transport.write(data, *more)

    def _log(self) -> None:
        one, self._request = self._request, None
        if one is not None:
            method, path = one.method.decode("latin-1"), one.path.decode("latin-1")
            access.log(self.transport.peer, method, path, self._status or "499", one.arrived)
            self._status = ""

    def is_late(self, silent: int, idle: int, stalled: int) -> bool:
        return self._request is None and silent > (stalled if self._parser.is_partial else idle)

    @property
    def is_done(self) -> bool:
        return self._request is None

    @property
    def in_flight(self) -> bool:
        return self._request is not None or self.transport.unsent > 0 or self._parser.is_partial

    def lost(self) -> None:
        if self.gone is not None:
            gone, self.gone = self.gone, None
            gone()
        if self._is_logged:
            self._log()

    def reset(self) -> None:
        """Close with RST, even if the response is incomplete."""
        self.gone = None
        self.transport.reset()
