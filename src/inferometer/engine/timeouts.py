"""Ends requests that missed their deadline or a timeout. They are found by looking, never by a timer per request."""

import asyncio

from inferometer.config.schema import Timeouts as Limits
from inferometer.engine.deadlines import Deadlines
from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.http1_pool import NEVER, Connection
from inferometer.engine.inflight import Flight
from inferometer.timing.clock import now
from inferometer.units import NS

_LOOK_SHARE = 20
"""A look for timeouts goes over all that is in flight, so the next one comes no sooner than this many times what it took."""
_SWEEP_APART = 5_000_000
"""A look for deadlines goes over the first call of each connection only: such sweeps may be this close, whatever is in flight."""


class Timeouts:
    def __init__(
        self, limits: Limits, dispatcher: Dispatcher, deadlines: Deadlines, loop: asyncio.AbstractEventLoop
    ) -> None:
        seconds = (limits.connect, limits.first_token, limits.idle, limits.total)
        self._limits = tuple(int(limit * NS) or NEVER for limit in seconds)
        self._dispatcher = dispatcher
        self._deadlines = deadlines
        self._loop = loop
        self._look_at = 0  # for timeouts, again
        self._is_over = False

    def stop(self) -> None:
        self._is_over = True

    def sweep(self) -> None:
        """End what has missed its deadline or outlasted a timeout, and come back when more may have."""
        if self._is_over:
            return
        at = now()
        following = min(pool.expire(at) for pool in self._dispatcher.pools)
        apart = min(_SWEEP_APART, _LOOK_SHARE * (now() - at))
        if at >= self._look_at:
            self._look_at = self._time_out(at)
        following = min(max(following, at + apart), self._look_at)
        if following < NEVER and not self._is_over:
            self._deadlines.at(following, self._sweep_soon)

    def _sweep_soon(self) -> None:
        """Deadlines may fire in the middle of the reader's work; reading more has to wait for the end of that."""
        self._loop.call_soon(self.sweep)

    def _time_out(self, at: int) -> int:
        """Fail what has outlasted a timeout, and return when to look again: nothing new can expire before the shortest limit."""
        shortest = min(self._limits)
        if shortest == NEVER:
            return NEVER
        begun = now()
        following = at + shortest
        expired: list[tuple[Connection, Flight, str]] = []
        for connection, flight in self._dispatcher.flights():
            expires, code = self._expiry(connection, flight)
            if expires > at:
                following = min(following, expires)
            else:
                expired.append((connection, flight, code))
        apart = _LOOK_SHARE * (now() - begun)
        for connection, flight, code in expired:
            connection.give_up(flight, code)
        return max(following, at + apart)

    def _expiry(self, connection: Connection, flight: Flight) -> tuple[int, str]:
        """Return when the request expires, and by which of its timeouts."""
        connect, first_token, idle, total = self._limits
        if not connection.link.is_ready:
            return connection.link.connect_from + connect, "connect_timeout"
        arrivals = flight.arrivals
        if arrivals:
            return min((flight.sent + total, "total_timeout"), (arrivals[-1] + idle, "idle_timeout"))
        return min((flight.sent + total, "total_timeout"), (flight.sent + first_token, "first_token_timeout"))
