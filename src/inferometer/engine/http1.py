"""HTTP/1.1: connections to one base URL, each of which carries one request at a time. They are opened before t=0, kept alive, and reused
last in first out.

Bytes that cannot end a response wait in the transport until some arrive that may (reader.py): decoding many at once takes half the time.
"""

from collections.abc import Callable, Iterator, Sequence

from inferometer.engine.connector import NEVER, STALE_WITHIN, Connector, OnEnded
from inferometer.engine.inflight import Flight, excess, keep_first_attempt, take
from inferometer.engine.transport import Transport, connection_lost
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Fail

_MAX_STALE_IN_A_ROW = 3
"""After this many stale connections in a row, with no successful reuse in between, connections are no longer reused."""
_WARMING = -1


class Http1Connection:
    """A transport, its decoder, and the request that it carries."""

    __slots__ = ("_pool", "_was_idle", "decoder", "flight", "responses", "transport")

    def __init__(self, pool: "Http1Pool", decoder: Decoder) -> None:
        self._pool = pool
        self.decoder = decoder
        self._was_idle = False  # if so, the server may have closed it without our knowing
        self.transport: Transport  # set by the pool
        self.flight: Flight | None = None
        self.responses = 0

    def established(self) -> None:
        flight = self.flight
        if flight is None:
            self._was_idle = True
            self._pool.opened(self)
        else:
            flight.held += now() - self.transport.connect_started
            self.start(flight)

    def start(self, flight: Flight) -> None:
        """Send a request. The connection carries it until it reports its end to the pool."""
        self.take(flight)
        flight.sent = now()
        self.transport.write(flight.data)

    def take(self, flight: Flight) -> None:
        """Prepare for a request, and carry it from now on."""
        self.flight = flight
        self.decoder.reset()
        flight.attempts += 1
        flight.replica, flight.rtt = self.transport.replica, self.transport.rtt
        flight.bytes_out = len(flight.data)

    def received(self, pieces: Sequence[bytes], stamps: Sequence[int], delay: int) -> None:
        """Process bytes of the response."""
        flight = self.flight
        if flight is None:  # they belong to no request: the server breaks the protocol
            self._close_idle()
            return
        if not flight.first_byte:
            flight.first_byte = stamps[0]
        decoder = self.decoder
        flight.bytes_in += len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if delay > flight.read_delay:
            flight.read_delay = delay
        ending = decoder.feed(pieces, stamps)
        if ending is None:
            self.transport.let_wait(decoder.ending)
            flight.arrivals = decoder.received.arrivals  # for timeouts and the live view
            if flight.bytes_in > flight.check_at:
                take(flight, decoder.received)
                ending = excess(flight)
        if ending is not None:
            self._ended(flight, stamps[-1], ending)

    @property
    def waiting(self) -> Sequence[int]:
        return self.transport.stamps

    def decode_waiting(self) -> None:
        """Decode the bytes that have been read and wait for others."""
        self.transport.deliver()

    def closed(self, at: int) -> None:
        """The server closed, or the connection broke."""
        flight = self.flight
        if self.transport.error is not None:
            if flight is None or flight.first_byte or not self._return_if_stale(flight):
                self.broken(connection_lost(self.transport.error))
        elif flight is None:
            self._close_idle()
        elif flight.first_byte or not self._return_if_stale(flight):
            self._ended(flight, at, self.decoder.eof())

    def _close_idle(self) -> None:
        self.transport.close()
        self._pool.closed(self, None)

    def _ended(self, flight: Flight, at: int, ending: End | Fail) -> None:
        self.flight = None
        self.transport.let_wait(b"")
        self._was_idle = True
        self.responses += 1
        if not ending.keep_alive or self.transport.is_writing:
            self.transport.close()
        self._report(flight, at, ending)

    def drained(self) -> None:
        """Do nothing: the whole request has reached the kernel."""

    # --- failures ---

    def give_up(self, flight: Flight, code: str, message: str = "") -> None:
        """End the request in flight as a failure, and close the connection."""
        self.decode_waiting()
        if self.flight is flight:  # otherwise its response is complete
            self.broken(Fail(code, message))

    def _return_if_stale(self, flight: Flight) -> bool:
        """If the server closed the idle connection before this request arrived, return the request to the pool to be sent again."""
        if not self._was_idle or flight.attempts > 1 or now() - flight.sent > STALE_WITHIN:
            return False
        self.flight = None
        self.transport.close()
        self._pool.stale(self, flight)
        return True

    def broken(self, fail: Fail) -> None:
        flight, self.flight = self.flight, None
        self.transport.close()
        if flight is None:
            self._pool.closed(self, fail)
        else:
            self._report(flight, now(), fail)

    def _report(self, flight: Flight, at: int, ending: End | Fail) -> None:
        take(flight, self.decoder.received)
        self._pool.ended(self, flight, at, ending)
        if not self.transport.is_open:
            self.decoder.reset()  # garbage is not collected during a run, and the decoder may hold much of a response


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
        self._connections: set[Http1Connection] = set()
        self.closed_by_server = 0  # connections that have carried a response
        self.encoding = ""  # how responses were compressed, if they were

    # --- before t=0 ---

    async def open(self, count: int, timeout: float) -> Fail | None:
        """Open `count` connections; return the failure if one fails or takes longer than `timeout` seconds (0: no limit)."""
        return await self._connector.several(count, lambda: self._open(None), timeout)

    async def warm(self, request: bytes, timeout: float) -> Fail | None:
        """Use each connection once; the response does not matter."""
        ready, self._idle = self._idle, []

        def warm_next() -> None:
            connection = ready.pop()
            if connection.transport.is_open:
                connection.start(Flight(id=_WARMING, intended=0, data=request))
            else:  # closed by the server in the meantime
                self._connector.count_down()

        return await self._connector.several(len(ready), warm_next, timeout)

    # --- the run ---

    def send(self, flights: Sequence[Flight]) -> None:
        """Send each request over an idle connection at the next `flush`, or over a new one."""
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
        """Return the requests in flight, with the connection of each."""
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
        """Take a connection that is established and carries no request yet."""
        self._idle.append(connection)
        self._connector.count_down()

    def closed(self, connection: Http1Connection, fail: Fail | None) -> None:
        """Drop a connection that closed while it carried no request."""
        self._drop(connection)
        self.closed_by_server += connection.responses > 0
        if fail is not None:
            self._connector.count_down(fail)

    def ended(self, connection: Http1Connection, flight: Flight, at: int, event: End | Fail) -> None:
        """Use the connection again, if possible, whose response is complete or has failed."""
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
            self._connector.count_down()
        else:
            self._on_ended(flight, at, event, connection.decoder)

    def stale(self, connection: Http1Connection, flight: Flight) -> None:
        """Send a request again over a new connection: the server had closed this one before the request arrived."""
        self._drop(connection)
        self.closed_by_server += 1
        self._stale_in_a_row += 1
        if self._stale_in_a_row >= _MAX_STALE_IN_A_ROW:
            self._reuse = False
        keep_first_attempt(flight)
        self._open(flight)
