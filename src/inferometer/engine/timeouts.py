"""Ends requests that missed their deadline or exceeded a timeout, which are found by sweeps: there is no timer per request. Also ends the
wait for the last responses of a load."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferometer.engine.connector import NEVER
from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.inflight import Flight
from inferometer.engine.job import Limits
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Deadlines
from inferometer.units import NS

if TYPE_CHECKING:
    from inferometer.engine.dispatcher import Connection

_SWEEP_SHARE = 20
"""A sweep for timeouts goes over all requests in flight, so the next one comes no sooner than this many times what it took."""
_DEADLINE_SWEEP_GAP = 5_000_000
"""Sweeps for deadlines are kept apart for at most this long, in ns: they only look at the first call of each connection, so they may
come this often however many requests are in flight."""


class Timeouts:
    def __init__(
        self, limits: Limits, dispatcher: Dispatcher, deadlines: Deadlines, loop: asyncio.AbstractEventLoop
    ) -> None:
        seconds = (limits.connect, limits.first_token, limits.idle, limits.total)
        self._limits = tuple(int(limit * NS) or NEVER for limit in seconds)
        self._dispatcher = dispatcher
        self._deadlines = deadlines
        self._loop = loop
        self._next_timeout_sweep = 0
        self._is_over = False

    def stop(self) -> None:
        self._is_over = True

    def sweep(self) -> None:
        """End requests that missed their deadline or exceeded a timeout, and schedule the next sweep for when more may have."""
        if self._is_over:
            return
        at = now()
        following = min(pool.expire(at) for pool in self._dispatcher.pools)
        gap = min(_DEADLINE_SWEEP_GAP, _SWEEP_SHARE * (now() - at))
        if at >= self._next_timeout_sweep:
            self._next_timeout_sweep = self._sweep_timeouts(at)
        following = min(max(following, at + gap), self._next_timeout_sweep)
        if following < NEVER and not self._is_over:
            self._deadlines.at(following, self._sweep_soon)

    def _sweep_soon(self) -> None:
        """Sweep in the next loop iteration: this may run in the middle of the reader's work, and a sweep reads sockets itself."""
        self._loop.call_soon(self.sweep)

    def _sweep_timeouts(self, at: int) -> int:
        """Fail requests that exceeded a timeout, and return when to sweep again: nothing new can expire before the shortest limit."""
        shortest = min(self._limits)
        if shortest == NEVER:
            return NEVER
        started = now()
        following = at + shortest
        expired: list[tuple[Connection, Flight, str]] = []
        for connection, flight in self._dispatcher.flights():
            expires, code = self._expiry(connection, flight)
            if expires > at:
                following = min(following, expires)
            else:
                expired.append((connection, flight, code))
        gap = _SWEEP_SHARE * (now() - started)
        for connection, flight, _ in expired:
            connection.decode_waiting()
            expires, code = self._expiry(connection, flight)
            if expires > at:
                following = min(following, expires)
            else:
                connection.give_up(flight, code)
        return max(following, at + gap)

    def _expiry(self, connection: "Connection", flight: Flight) -> tuple[int, str]:
        """Return when the request expires, and which of its timeouts expires first."""
        connect, first_token, idle, total = self._limits
        if not connection.transport.is_ready:
            return connection.transport.connect_started + connect, "connect_timeout"
        arrivals = flight.arrivals
        if arrivals:
            return min((flight.sent + total, "total_timeout"), (arrivals[-1] + idle, "idle_timeout"))
        return min((flight.sent + total, "total_timeout"), (flight.sent + first_token, "first_token_timeout"))


class Patience:
    """Ends the wait for the last responses of a load that ends by time: a server may not respond, or never end its responses.

    Slow responses are awaited as long as they are good for anything: until none has made progress for `client.grace`, or for as long
    as the load took. Progress is a request that was sent or that ended well, and a token that was requested.
    """

    def __init__(self, limits: Sequence[int], dispatcher: Dispatcher) -> None:
        """`limits`: for each stage, how long to wait for progress after its end, in ns; 0: no limit."""
        self._limits = (*limits, 0)
        self._dispatcher = dispatcher
        self._next_look = NEVER
        self._limit = self._progressed = self._ok = 0

    def begin(self, stage: int, at: int) -> None:
        """Note that this stage ended at this instant, and that what follows waits for its responses. -1: nothing waits."""
        self._limit, self._progressed, self._ok = self._limits[stage], at, self._dispatcher.state.ok
        self._next_look = at if self._limit else NEVER

    def is_over(self, at: int) -> bool:
        """Return whether no request in flight has made progress for too long."""
        if at < self._next_look:
            return False
        self._next_look = at + NS // 4
        if (ok := self._dispatcher.state.ok) > self._ok:
            self._ok, self._progressed = ok, at
        flights = list(self._dispatcher.flights())
        for connection, flight in flights:
            arrivals, waiting = flight.arrivals, connection.waiting
            is_wanted = arrivals and (not flight.n_want or len(arrivals) + len(waiting) <= flight.n_want)
            self._progressed = max(self._progressed, flight.sent, (waiting or arrivals)[-1] if is_wanted else 0)
        return bool(flights) and at > self._progressed + self._limit
