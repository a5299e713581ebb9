"""Ends requests that missed their deadline or exceeded a timeout. They are found by sweeps; there is no timer per request."""

import asyncio

from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.http1_pool import NEVER, Connection
from inferometer.engine.inflight import Flight
from inferometer.engine.job import Limits
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Deadlines
from inferometer.units import NS

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

    def _expiry(self, connection: Connection, flight: Flight) -> tuple[int, str]:
        """Return when the request expires, and which of its timeouts expires first."""
        connect, first_token, idle, total = self._limits
        if not connection.transport.is_ready:
            return connection.transport.connect_started + connect, "connect_timeout"
        arrivals = flight.arrivals
        if arrivals:
            return min((flight.sent + total, "total_timeout"), (arrivals[-1] + idle, "idle_timeout"))
        return min((flight.sent + total, "total_timeout"), (flight.sent + first_token, "first_token_timeout"))
