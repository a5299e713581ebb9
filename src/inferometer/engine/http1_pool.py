"""The HTTP/1.1 connections to one base URL: opened before t=0, kept alive, reused last in first out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from inferometer.engine.connector import OPENED_AT_ONCE, Connector, Countdown
from inferometer.engine.http1_connection import Http1Connection
from inferometer.engine.inflight import Flight, keep_first_attempt
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Fail

NEVER = 1 << 62
"""An instant that never comes."""
_MAX_STALE_IN_A_ROW = 3
"""After this many stale connections in a row, with no successful reuse in between, connections are no longer reused."""


class ResponseState(Protocol):
    """What is known about a response once it has ended."""

    @property
    def status(self) -> int: ...

    @property
    def text(self) -> str: ...


OnEnded = Callable[[Flight, int, End | Fail, ResponseState], None]


class ConnectState(Protocol):
    """Whether a transport is ready, and when it started to connect."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def connect_started(self) -> int: ...

    def sample_rtt(self) -> None: ...


class Connection(Protocol):
    """What carries a request: an HTTP/1.1 or HTTP/2 connection, or the queue for one."""

    @property
    def transport(self) -> ConnectState: ...

    @property
    def waiting(self) -> Sequence[int]:
        """When the reads arrived that wait to be decoded. Usually, each is a chunk of a response whose first token is decoded."""

    def decode_waiting(self) -> None:
        """Decode what has been read and not yet decoded, if anything."""

    def give_up(self, flight: Flight, code: str, message: str = "") -> None: ...


class Pool(Protocol):
    """The connections to one base URL: HTTP/1.1 (here) or HTTP/2 (http2_pool.py)."""

    async def open(self, count: int, timeout: float) -> Fail | None:
        """Open `count` connections; return the failure if one fails or takes longer than `timeout` seconds (0: no limit)."""

    async def warm(self, request: bytes, timeout: float) -> Fail | None:
        """Use each connection once; the response does not matter."""

    def send(self, flights: Sequence[Flight]) -> None:
        """Send requests now, or at the next `flush`."""

    def flush(self) -> None:
        """Send the requests that `send` has taken."""

    def flights(self) -> Iterator[tuple[Connection, Flight]]:
        """Return the requests in flight, with the connection of each."""

    def expire(self, at: int) -> int:
        """End the requests that have missed their deadline by this instant; return when the next one may."""

    def close(self) -> None: ...


class Http1Pool:
    def __init__(
        self, connector: Connector, decoder: Callable[[], Decoder], on_ended: OnEnded, max_requests: int = 0
    ) -> None:
        """`max_requests`: the number of requests after which a connection is closed; 0: no limit."""
        self._max_requests = max_requests or NEVER
        self._connector = connector
        self._new_decoder = decoder
        self._on_ended = on_ended
        self._idle: list[Http1Connection] = []
        self._unsent: list[tuple[Http1Connection, Flight]] = []
        self._stale_in_a_row = 0
        self._reuse = True
        self._countdown = Countdown(connector.loop)
        self._connections: set[Http1Connection] = set()
        self.closed_by_server = 0  # connections that have carried a response
        self.encoding = ""  # how responses were compressed, if they were

    # --- before t=0 ---

    async def open(self, count: int, timeout: float) -> Fail | None:
        for first in range(0, count, OPENED_AT_ONCE):
            failed = await self._countdown.wait(min(OPENED_AT_ONCE, count - first), lambda: self._open(None), timeout)
            if failed is not None:
                return failed
        return None

    async def warm(self, request: bytes, timeout: float) -> Fail | None:
        ready = list(self._idle)
        self._idle.clear()
        for first in range(0, len(ready), OPENED_AT_ONCE):
            # Some may have been closed by the server in the meantime.
            batch = [each for each in ready[first : first + OPENED_AT_ONCE] if each.transport.is_open]
            failed = await self._countdown.wait(
                len(batch),
                lambda batch=batch: batch.pop().start(_warming(request)),  # type: ignore[misc]
                timeout,
            )
            if failed is not None:
                return failed
        return None

    # --- the run ---

    def send(self, flights: Sequence[Flight]) -> None:
        """Send each request over an idle connection, or over a new one."""
        idle, unsent = self._idle, self._unsent
        for flight in flights:
            while idle:
                connection = idle.pop()
                if connection.transport.is_open:
                    connection.take(flight)
                    unsent.append((connection, flight))
                    break
            else:
                self._open(flight)

    def flush(self) -> None:
        """Send one request after the other, with nothing in between: the kernel's code stays in the processor's cache."""
        unsent, self._unsent = self._unsent, []
        for connection, flight in unsent:
            if connection.flight is flight:  # it may have been given up in the meantime
                flight.sent = now()
                connection.transport.write(flight.data)

    def flights(self) -> Iterator[tuple[Http1Connection, Flight]]:
        return ((each, each.flight) for each in list(self._connections) if each.flight is not None)

    def expire(self, at: int) -> int:
        """Do nothing: only gRPC calls have deadlines."""
        return NEVER

    def close(self) -> None:
        for connection in list(self._connections):
            connection.transport.close()
            self._drop(connection)

    def _drop(self, connection: Http1Connection) -> None:
        self._connections.discard(connection)
        self.encoding = getattr(connection.decoder, "encoding", "") or self.encoding

    def _open(self, flight: Flight | None) -> None:
        connection = Http1Connection(self, self._new_decoder())
        connection.transport = self._connector.new_transport(connection)
        connection.flight = flight
        self._connections.add(connection)
        self._connector.open(connection.transport)

    # --- called by connections ---

    def opened(self, connection: Http1Connection) -> None:
        self._idle.append(connection)
        self._countdown.count_down()

    def closed(self, connection: Http1Connection, fail: Fail | None) -> None:
        self._drop(connection)
        self.closed_by_server += connection.responses > 0
        if fail is not None and self._countdown.is_awaited:
            self._countdown.count_down(fail)

    def ended(self, connection: Http1Connection, flight: Flight, at: int, event: End | Fail) -> None:
        if flight.id == _WARMING:
            connection.responses = 0
        if not connection.transport.is_open:
            self._drop(connection)
            self.closed_by_server += isinstance(event, End)
        elif self._reuse and connection.responses < self._max_requests:
            self._idle.append(connection)
            if connection.responses > 1:  # the first response says nothing about reuse
                self._stale_in_a_row = 0
        else:
            connection.transport.close()
            self._drop(connection)
        if flight.id == _WARMING:
            self._countdown.count_down()
        else:
            self._on_ended(flight, at, event, connection.decoder)

    def stale(self, connection: Http1Connection, flight: Flight) -> None:
        self._drop(connection)
        self.closed_by_server += 1
        self._stale_in_a_row += 1
        if self._stale_in_a_row >= _MAX_STALE_IN_A_ROW:
            self._reuse = False
        keep_first_attempt(flight)
        self._open(flight)


_WARMING = -1


def _warming(request: bytes) -> Flight:
    return Flight(id=_WARMING, intended=0, data=request)
