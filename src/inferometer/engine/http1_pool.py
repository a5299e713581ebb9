"""The HTTP/1.1 connections to one base URL: opened before t=0, kept alive, reused last in first out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from inferometer.engine.connector import AT_ONCE, Connector, Countdown
from inferometer.engine.http1_connection import Http1Connection
from inferometer.engine.inflight import Flight
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Fail

NEVER = 1 << 62
"""An instant that does not come."""
_STALE_IN_A_ROW = 3
"""After so many reused connections that had gone stale, with no reuse that worked between, none are reused any more."""


class ResponseState(Protocol):
    """What is known of an answer once it ended."""

    @property
    def status(self) -> int: ...

    @property
    def text(self) -> str: ...


OnEnded = Callable[[Flight, int, End | Fail, ResponseState], None]


class Openness(Protocol):
    """Whether a link is open, and since when that is tried."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def connect_from(self) -> int: ...


class Connection(Protocol):
    """What carries a flight: a connection, or a channel."""

    @property
    def link(self) -> Openness: ...

    def give_up(self, flight: Flight, code: str, message: str = "") -> None: ...


class Pool(Protocol):
    """All that lead to one base URL: connections (here), or channels (http2_pool.py)."""

    async def open(self, count: int, patience: float) -> Fail | None:
        """Open `count`; why not, if one fails or takes longer than `patience` seconds (0: no limit)."""

    async def warm(self, request: bytes, patience: float) -> Fail | None:
        """Use each of them once; what is answered does not matter."""

    def carry(self, flights: Sequence[Flight]) -> None:
        """Send them, at the latest at the next `flush`."""

    def flush(self) -> None:
        """Send what `carry` has taken."""

    def flights(self) -> Iterator[tuple[Connection, Flight]]:
        """What is under way."""

    def expire(self, at: int) -> int:
        """End what has missed its deadline by an instant; when the next may."""

    def close(self) -> None: ...


class Http1Pool:
    def __init__(self, dial: Connector, decoder: Callable[[], Decoder], on_ended: OnEnded) -> None:
        self._dial = dial
        self._decoder = decoder
        self._on_ended = on_ended
        self._idle: list[Http1Connection] = []
        self._unsent: list[tuple[Http1Connection, Flight]] = []
        self._stale = 0
        self._reuse = True
        self._begun = Countdown(dial.loop)
        self._connections: set[Http1Connection] = set()

    # --- before t=0 ---

    async def open(self, count: int, patience: float) -> Fail | None:
        for first in range(0, count, AT_ONCE):
            failed = await self._begun.all(min(AT_ONCE, count - first), lambda: self._open(None), patience)
            if failed is not None:
                return failed
        return None

    async def warm(self, request: bytes, patience: float) -> Fail | None:
        ready = list(self._idle)
        self._idle.clear()
        for first in range(0, len(ready), AT_ONCE):
            batch = [each for each in ready[first : first + AT_ONCE] if each.link.is_open]  # and not closed meanwhile
            failed = await self._begun.all(
                len(batch),
                lambda batch=batch: batch.pop().start(_warming(request)),  # type: ignore[misc]
                patience,
            )
            if failed is not None:
                return failed
        return None

    # --- the run ---

    def carry(self, flights: Sequence[Flight]) -> None:
        """Send each over a connection that is free, or over a new one."""
        idle, unsent = self._idle, self._unsent
        for flight in flights:
            while idle:
                connection = idle.pop()
                if connection.link.is_open:
                    connection.take(flight)
                    unsent.append((connection, flight))
                    break
            else:
                self._open(flight)

    def flush(self) -> None:
        """One send after the other, with nothing in between: the kernel's code stays in the processor's cache."""
        unsent, self._unsent = self._unsent, []
        for connection, flight in unsent:
            if connection.flight is flight:  # and not given up meanwhile
                flight.sent = now()
                connection.link.write(flight.data)

    def flights(self) -> Iterator[tuple[Http1Connection, Flight]]:
        return ((each, each.flight) for each in list(self._connections) if each.flight is not None)

    def expire(self, at: int) -> int:
        """Deadlines are gRPC's."""
        return NEVER

    def close(self) -> None:
        for connection in self._connections:
            connection.link.shut()
        self._connections.clear()

    def _open(self, flight: Flight | None) -> None:
        connection = Http1Connection(self, self._decoder())
        connection.link = self._dial.link(connection)
        connection.flight = flight
        self._connections.add(connection)
        self._dial.open(connection.link)

    # --- told by connections ---

    def opened(self, connection: Http1Connection) -> None:
        self._idle.append(connection)
        self._begun.one_less()

    def closed(self, connection: Http1Connection, fail: Fail | None) -> None:
        self._connections.discard(connection)
        if fail is not None and self._begun.is_awaited:
            self._begun.one_less(fail)

    def ended(self, connection: Http1Connection, flight: Flight, at: int, event: End | Fail) -> None:
        if not connection.link.is_open:
            self._connections.discard(connection)
        elif self._reuse:
            self._idle.append(connection)
            if connection.answers > 1:  # the first answer says nothing about reuse
                self._stale = 0
        else:
            connection.link.shut()
            self._connections.discard(connection)
        if flight.id == _WARMING:
            self._begun.one_less()
        else:
            self._on_ended(flight, at, event, connection.decoder)

    def stale(self, connection: Http1Connection, flight: Flight) -> None:
        self._connections.discard(connection)
        self._stale += 1
        if self._stale >= _STALE_IN_A_ROW:
            self._reuse = False
        flight.held += now() - flight.sent
        self._open(flight)


_WARMING = -1


def _warming(request: bytes) -> Flight:
    return Flight(id=_WARMING, intended=0, data=request)
