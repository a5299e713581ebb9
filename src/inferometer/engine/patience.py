"""Ends the wait for the last responses of a load that ends by time: a server may not respond, or never end its responses.

Slow responses are awaited as long as they are good for anything: until none has made progress for `client.grace`, or for as long as
the load took. Progress is a request that was sent or that ended well, and a token that was requested.
"""

from collections.abc import Sequence

from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.http1_pool import NEVER
from inferometer.units import NS


class Patience:
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
