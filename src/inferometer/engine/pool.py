"""The connections to one base URL: opened before t=0, kept alive, reused last in first out."""

import asyncio
import ssl
from collections.abc import Callable

from inferometer.engine.connection import Clock, Connection
from inferometer.engine.flight import Flight
from inferometer.engine.inbox import Inbox
from inferometer.engine.tls import TlsConnection
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Fail
from inferometer.wire.target import Target

_AT_ONCE = 64
"""Connections opened at the same time before t=0: servers' listen queues are short."""
_STALE_IN_A_ROW = 3
"""After so many reused connections that had gone stale, with no reuse that worked between, none are reused any more."""

Ended = Callable[[Connection, Flight, int, End | Fail], None]


class Pool:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        target: Target,
        address: tuple[int, tuple[object, ...]],
        clock: Clock,
        inbox: Inbox,
        decoder: Callable[[], Decoder],
        context: ssl.SSLContext | None,
        on_ended: Ended,
    ) -> None:
        self._loop = loop
        self._target = target
        self._family, self._address = address
        self._clock = clock
        self._inbox = inbox
        self._decoder = decoder
        self._context = context
        self._on_ended = on_ended
        self._idle: list[Connection] = []
        self._stale = 0
        self._reuse = True
        self._waiter: asyncio.Future[Fail | None] | None = None  # before t=0: who waits for _left connections
        self._left = 0
        self.connections: set[Connection] = set()

    # --- before t=0 ---

    async def open(self, count: int, patience: float) -> Fail | None:
        """Open `count` connections; why not, if one fails or takes longer than `patience` seconds (0: no limit)."""
        for first in range(0, count, _AT_ONCE):
            failed = await self._all(min(_AT_ONCE, count - first), lambda: self._open(None), patience)
            if failed is not None:
                return failed
        return None

    async def warm(self, request: bytes, patience: float) -> Fail | None:
        """Send `request` over each open connection; what is answered does not matter."""
        ready = list(self._idle)
        self._idle.clear()
        for first in range(0, len(ready), _AT_ONCE):
            batch = ready[first : first + _AT_ONCE]
            failed = await self._all(
                len(batch),
                lambda batch=batch: batch.pop().start(_warming(request)),  # type: ignore[misc]
                patience,
            )
            if failed is not None:
                return failed
        return None

    async def _all(self, count: int, begin: Callable[[], None], patience: float) -> Fail | None:
        self._waiter, self._left = self._loop.create_future(), count
        for _ in range(count):
            begin()
        try:
            return await asyncio.wait_for(self._waiter, patience or None)
        except TimeoutError:
            return Fail("connect_timeout", f"no answer on {self._left} of {count} connections within {patience:g} s")
        finally:
            self._waiter = None

    def _one_less(self, fail: Fail | None) -> None:
        self._left -= 1
        if self._waiter is not None and not self._waiter.done() and (fail is not None or self._left == 0):
            self._waiter.set_result(fail)

    # --- the run ---

    def carry(self, flight: Flight) -> None:
        """Send `flight` over a connection that is free, or over a new one."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.is_open:
                connection.start(flight)
                return
        self._open(flight)

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections.clear()

    def _open(self, flight: Flight | None) -> None:
        if self._context is None:
            connection = Connection(self._loop, self, self._clock, self._inbox, self._decoder())
        else:
            connection = TlsConnection(
                self._loop, self, self._clock, self._inbox, self._decoder(), self._context, self._target.host
            )
        self.connections.add(connection)
        connection.connect(self._family, self._address, flight)

    # --- told by connections ---

    def opened(self, connection: Connection) -> None:
        self._idle.append(connection)
        self._one_less(None)

    def closed(self, connection: Connection, fail: Fail | None) -> None:
        self.connections.discard(connection)
        if fail is not None and self._waiter is not None:
            self._one_less(fail)

    def ended(self, connection: Connection, flight: Flight, at: int, event: End | Fail) -> None:
        if not connection.is_open:
            self.connections.discard(connection)
        elif self._reuse:
            self._idle.append(connection)
            if connection.answers > 1:  # the first answer says nothing about reuse
                self._stale = 0
        else:
            connection.close()
            self.connections.discard(connection)
        if flight.id == _WARMING:
            self._one_less(None)
        else:
            self._on_ended(connection, flight, at, event)

    def stale(self, connection: Connection, flight: Flight) -> None:
        self.connections.discard(connection)
        self._stale += 1
        if self._stale >= _STALE_IN_A_ROW:
            self._reuse = False
        flight.held += now() - flight.sent
        self._open(flight)


_WARMING = -1


def _warming(request: bytes) -> Flight:
    return Flight(id=_WARMING, intended=0, data=request)
