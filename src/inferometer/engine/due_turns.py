"""The turns of sessions that are due, in a closed loop that counts requests: they wait until one of its users is free.

While a session's user thinks, nobody waits for it: the free user of the loop sends whichever turn is due, or starts a new session when
none is. So the number of requests in flight stays the same, and the number of sessions follows from their think time.
"""

import heapq

from inferometer.engine.inflight import Flight
from inferometer.engine.requests import Due


class DueTurns:
    """The turns that wait; the one that is due for the longest time is sent first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Flight]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, flight: Flight) -> None:
        heapq.heappush(self._heap, (flight.intended, flight.id, flight))

    def take(self, due: Due) -> Flight:
        """Return the next turn, for a user who is free since an instant: until then the load held it back."""
        user, at = due
        flight = heapq.heappop(self._heap)[2]
        flight.user = user
        flight.held += max(at - flight.intended, 0)
        return flight
