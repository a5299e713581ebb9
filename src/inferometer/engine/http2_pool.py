"""The HTTP/2 connections to one base URL. A request is sent over an idle one, else over one that has room, else over a new one.

Idle connections come first because the kernel keeps a single stamp for everything unread in a socket: responses that arrive at the
same time over one connection all get the stamp of the last one. Deadlines go by that stamp, too: once a deadline has passed, the
connection is read before the call is given up, so a response that arrived in time still counts. Only if the client stalled past the
deadline, and more data arrived over the connection in the meantime, is the response's own stamp lost; it then counts as late.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from inferometer.engine.connector import NEVER, Connector, OnEnded
from inferometer.engine.http2_connection import Http2Connection
from inferometer.engine.inflight import Flight, keep_first_attempt
from inferometer.timing.clock import now
from inferometer.types import Calls, End, Fail, StreamResponse
from inferometer.units import NS
from inferometer.wire.grpc import deadline_passed

_BEFORE_OPEN = {
    "closed": "the server closed the connection before it was ready for a request",
    "reset": "the server reset the connection before it was ready for a request",
}
"""A server that shuts down causes these: the kernel accepts connections until the listening socket is closed."""


class Http2Pool:
    def __init__(
        self,
        connector: Connector,
        calls: Calls,
        url: int,
        on_ended: OnEnded,
        deadline: float = 0,
        max_requests: int = 0,
    ) -> None:
        """`url` is the number of the base URL. `deadline`: seconds from sending a call within which its response must be complete; 0: none.
        `max_requests`: calls after which a connection takes no more; 0: no limit. If streams are persistent, each connection has one, which
        carries one request at a time, and each user has a connection."""
        assert calls.response is not None
        self._max_requests = max_requests
        self._connector = connector
        # Without classes, a call's class is -1: the last, and only head.
        self._heads = tuple(heads[url] for heads in calls.class_heads or (calls.heads,))
        self._trace_header = calls.trace_header
        self._new_response = calls.response
        self._on_ended = on_ended
        self._is_persistent = calls.is_persistent
        self._by_user: dict[int, Http2Connection] = {}  # persistent: the connection that each user sent over last
        self._deadline = int(deadline * NS)
        self._missed_deadline = deadline_passed(deadline)
        self._ready: list[Http2Connection] = []
        self._idle: list[Http2Connection] = []  # those of `_ready` without calls; the last one used is reused first
        self._last_used = 0
        self._unflushed: list[Http2Connection] = []  # with requests that are queued and not yet sent
        self._opening: set[Http2Connection] = set()
        self._closing: set[Http2Connection] = set()
        self._waiting: deque[tuple[Flight, int]] = deque()  # for a connection with room, and since when
        self._refused: deque[tuple[Flight, int]] = deque()  # for a new connection: a server at its limit refuses again

    # --- before t=0 ---

    async def open(self, count: int, timeout: float) -> Fail | None:
        """Open `count` connections; return the failure if one fails or takes longer than `timeout` seconds (0: no limit)."""
        return await self._connector.several(count, self._open, timeout)

    async def warm(self, request: bytes, timeout: float) -> Fail | None:
        """Do nothing: a connection counts as open once settings have been exchanged over it."""
        return None

    # --- the run ---

    def send(self, flights: Sequence[Flight]) -> None:
        """Send each request at the next `flush`, or when there is a connection for it."""
        for flight in flights:
            self._send(flight)

    def _send(self, flight: Flight) -> None:
        """Send the request over an idle connection, over the next one that has room, or over a new one."""
        idle = self._idle
        if self._is_persistent and flight.user >= 0:
            own = self._by_user.get(flight.user)
            if own is not None and own.has_room and own in idle:
                idle.remove(own)
                self._start(own, flight)
                return
        while idle:
            connection = idle.pop()
            if not connection.calls and connection.has_room:
                self._start(connection, flight)
                return
        ready = self._ready
        for _ in ready:
            self._last_used = index = (self._last_used + 1) % len(ready)
            connection = ready[index]
            if connection.has_room:
                self._start(connection, flight)
                return
        self._waiting.append((flight, now()))
        self._open_missing()

    def _open_missing(self) -> None:
        """Open as many connections as the waiting requests need, less those that are being opened already."""
        waiting = len(self._waiting) + len(self._refused)
        per_connection = 1 if self._is_persistent else self._max_requests
        needed = -(-waiting // per_connection) if per_connection else min(waiting, 1)
        for _ in range(needed - len(self._opening)):
            self._open()

    def _start(self, connection: Http2Connection, flight: Flight) -> None:
        if not connection.unsent:
            self._unflushed.append(connection)
        head = self._heads[flight.class_]
        if self._trace_header is not None:
            head += self._trace_header(flight.id)
        connection.start(flight, head, self._new_response)
        if self._is_persistent:
            self._by_user[flight.user] = connection

    def flush(self) -> None:
        """Send the queued requests; those of one connection are handed to the kernel in one piece."""
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    def flights(self) -> Iterator[tuple["Http2Connection | Waiting", Flight]]:
        """Return the requests in flight, with the connection of each."""
        for connection in (*self._ready, *self._closing):
            for call in list(connection.calls.values()):
                yield connection, call.flight
        for flight, since in (*self._refused, *self._waiting):
            yield Waiting(self, self._connect_started(since)), flight

    def expire(self, at: int) -> int:
        """End the requests that have missed their deadline by this instant; return when the next one may."""
        if not self._deadline:
            return NEVER
        sent_by = at - self._deadline
        first = at  # when the oldest request that is left was sent
        for connection in (*self._ready, *self._closing):
            if connection.first_sent <= sent_by:
                connection.transport.read_until(at)
                connection.expire(sent_by, self._missed_deadline)
            first = min(first, connection.first_sent)
        return first + self._deadline

    def _connect_started(self, since: int) -> int:
        """Return when the connect timeout of a waiting request began: when a connection started to open. As long as responses
        to other requests may make room for it, it does not time out."""
        if self._opening:
            return min(connection.transport.connect_started for connection in self._opening)
        return now() if any(connection.calls for connection in self._ready) else since

    def close(self) -> None:
        for connection in (*self._ready, *self._opening, *self._closing):
            connection.end_stream()
            connection.transport.close()

    def _open(self) -> None:
        connection = Http2Connection(self, self._max_requests, self._is_persistent)
        connection.transport = self._connector.new_transport(connection)
        self._opening.add(connection)
        self._connector.open(connection.transport)

    # --- called by connections ---

    def opened(self, connection: Http2Connection) -> None:
        """Send over a connection that takes requests now: the server's settings have arrived."""
        self._opening.discard(connection)
        self._ready.append(connection)
        self._connector.count_down()
        at = now()
        self._send_queued(self._refused, connection, at)
        self._send_queued(self._waiting, connection, at)
        if not connection.calls:  # nothing was waiting, or the server allows no streams: do not open more connections
            self._idle.append(connection)
            self._retry_refused()
        elif self._refused or self._waiting:
            self._open_missing()

    def ended(
        self, connection: Http2Connection, flight: Flight, at: int, event: End | Fail, response: StreamResponse
    ) -> None:
        """Pass on a response that is complete or has failed, after using the room that it leaves."""
        if self._waiting:
            self._send_queued(self._waiting, connection, at)
        if not connection.calls:
            self._idle.append(connection)
        if self._deadline and at > flight.sent + self._deadline:  # it ended late, and before `expire` looked
            event = self._missed_deadline
        self._on_ended(flight, at, event, response)

    def refused(self, flight: Flight) -> None:
        """Send a request again over another connection: the server has certainly not processed it."""
        keep_first_attempt(flight)
        self._refused.append((flight, now()))
        self._connector.loop.call_soon(self._open_missing)  # once the connection's own state is settled

    def has_room_again(self, connection: Http2Connection) -> None:
        """Use the room: the server has changed the number of requests that it allows at a time."""
        self._send_queued(self._waiting, connection, now())

    def closing(self, connection: Http2Connection) -> None:
        """Send no more requests over this connection; those in flight still get their responses."""
        if connection in self._ready:
            self._ready.remove(connection)
            self._closing.add(connection)
            if self._waiting and not self._ready:
                self._connector.loop.call_soon(self._open_missing)

    def closed(self, connection: Http2Connection, fail: Fail | None) -> None:
        self._closing.discard(connection)
        if connection in self._ready:
            self._ready.remove(connection)
        if connection in self._opening:
            self._opening.discard(connection)
            fail = self._open_failure(fail or Fail("closed", ""))
            self._connector.count_down(fail)
            if self._ready:
                self._retry_refused()
            if not self._opening and (not self._ready or fail.code == "no_sockets"):
                self._fail_all(fail)
        elif self._waiting and not self._ready:
            self._connector.loop.call_soon(self._open_missing)

    def _open_failure(self, fail: Fail) -> Fail:
        """Return why a connection did not open, as the failure of the requests that waited for it. `closed` and `reset` are for
        requests that the server may have seen; it has seen none of these.

        With TLS 1.3, a server that misses the client's certificate reports it after the handshake, if at all.
        """
        if fail.code not in _BEFORE_OPEN:
            return fail
        if fail.code == "closed" and not fail.message and self._connector.context is not None:
            return Fail("tls", "the server closed after the TLS handshake: it may want a certificate (server.tls.cert)")
        return Fail("connect_failed", fail.message or _BEFORE_OPEN[fail.code])

    # --- requests that wait for a connection ---

    def _retry_refused(self) -> None:
        """Send refused requests over the existing connections after all: there will be no new one soon."""
        self._waiting.extend(self._refused)
        self._refused.clear()
        at = now()
        for connection in list(self._ready):
            self._send_queued(self._waiting, connection, at)

    def _send_queued(self, queue: deque[tuple[Flight, int]], connection: Http2Connection, at: int) -> None:
        """Send requests from a queue over a connection, as long as it has room. They were held until `at`, when there was room."""
        while queue and connection.has_room:
            flight, since = queue.popleft()
            flight.held += max(at - since, 0)
            self._start(connection, flight)
        if self._unflushed:
            self.flush()

    def give_up(self, flight: Flight, fail: Fail) -> None:
        """Fail a request that is not on any connection yet, and close the connections that did not open in time."""
        if fail.code == "connect_timeout":
            for connection in list(self._opening):
                connection.broken(fail)
            if any(connection.calls for connection in self._ready):  # their responses will make room
                return
        for queue in (self._refused, self._waiting):
            for index, (queued, _) in enumerate(queue):
                if queued is flight:
                    del queue[index]
                    self._on_ended(flight, now(), fail, self._new_response())
                    return

    def _fail_all(self, fail: Fail) -> None:
        """Fail all queued requests: there is no connection for them. If this machine has run out of sockets, they do not wait for
        room on other connections either: the load would silently be lower than the plan's."""
        at = now()
        for queue in (self._refused, self._waiting):
            while queue:
                self._on_ended(queue.popleft()[0], at, fail, self._new_response())


class Waiting(msgspec.Struct, frozen=True):
    """Stands in for the connection, and its transport, of a request that waits for one."""

    pool: Http2Pool
    connect_started: int
    is_ready: bool = False
    waiting: Sequence[int] = ()

    @property
    def transport(self) -> "Waiting":
        return self

    def sample_rtt(self) -> None:
        """Do nothing, like the next: there is no connection yet."""

    def decode_waiting(self) -> None: ...

    def give_up(self, flight: Flight, code: str, message: str = "") -> None:
        self.pool.give_up(flight, Fail(code, message))
