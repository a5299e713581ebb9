"""Sends requests over the connection pools, one per base URL, and enforces the cap on requests in flight."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from inferometer.engine.awake import Awake
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.recorder import Recorder
from inferometer.engine.requests import Requests
from inferometer.engine.run_state import RunState
from inferometer.records import CANCELLED, DROPPED
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Deadlines
from inferometer.types import Fail

if TYPE_CHECKING:
    from inferometer.engine.http1 import Http1Connection, Http1Pool
    from inferometer.engine.http2_connection import Http2Connection
    from inferometer.engine.http2_pool import Http2Pool, Waiting

    Pool: TypeAlias = Http1Pool | Http2Pool
    Connection: TypeAlias = Http1Connection | Http2Connection | Waiting


class Dispatcher:
    def __init__(
        self,
        pools: "Sequence[Pool]",
        requests: Requests,
        deadlines: Deadlines,
        awake: Awake,
        state: RunState,
        recorder: Recorder,
    ) -> None:
        self.deadlines = deadlines
        self.awake = awake
        self.state = state
        self.sequences = requests.sequences
        """Set if users send requests in sequences, each from its first to its last. None: requests are independent."""
        self.pools = pools
        self.holds_sends = False
        """While true, connections take requests and send them at the next `flush`, all in one go."""
        self.make = requests.make
        self._recorder = recorder
        self._queue: deque[tuple[Flight, int, int]] = deque()  # held back by the cap: the request, its cap, since when

    def release(self, flight: Flight, cap: int, drop: bool) -> None:
        """Send a request that is due, unless the cap holds it back."""
        if cap and self.state.in_flight >= cap:
            if drop:
                self._recorder.record([(flight, Fail(DROPPED, ""), None)])
            else:
                self._queue.append((flight, cap, now()))
            return
        self.launch([flight])

    def launch(self, flights: Sequence[Flight]) -> None:
        """Send requests, ignoring the cap."""
        self.state.in_flight += len(flights)
        self.state.sent += len(flights)
        self.send(flights)

    def send(self, flights: Sequence[Flight]) -> None:
        """Send requests that count as in flight."""
        for url, pool in enumerate(self.pools):
            own = flights if len(self.pools) == 1 else [flight for flight in flights if flight.url == url]
            pool.send(own)
            if not self.holds_sends:
                pool.flush()

    def flush(self) -> None:
        for pool in self.pools:
            pool.flush()

    def is_awaiting(self) -> bool:
        """Return whether a request has been sent whose response is not complete."""
        return any(flight.sent for _, flight in self.flights())

    def flights(self) -> "Iterator[tuple[Connection, Flight]]":
        """Return the requests in flight, with the connection of each."""
        for pool in self.pools:
            yield from pool.flights()

    # --- the queue at the cap ---

    @property
    def queued(self) -> int:
        return len(self._queue)

    def release_queued(self, ended: Sequence[Ended]) -> None:
        """Send requests that the cap has held back, as far as there is room now that these have ended.

        Each was held until the response arrived that made room for it; the time from then on is the client's own lag."""
        if not self._queue:
            return
        room_at = sorted(flight.done for flight, _, _ in ended)
        released = 0
        while self._queue and self.state.in_flight < self._queue[0][1]:
            flight, cap, since = self._queue.popleft()
            flight.held += max(room_at[min(released, len(room_at) - 1)] - since, 0)
            released += 1
            self.release(flight, cap, False)

    def cancel_queued(self) -> None:
        at = now()
        while self._queue:
            flight, _, _ = self._queue.popleft()
            flight.done = at
            self._recorder.record([(flight, Fail(CANCELLED, "still waiting for the cap"), None)])

    def cancel_all(self, code: str = CANCELLED) -> None:
        """Give up everything in flight as failures with this code."""
        for pool in self.pools:
            # Waiting requests first: ending one that is in flight would make room and send them.
            for connection, flight in reversed(list(pool.flights())):
                connection.give_up(flight, code)

    def close(self) -> None:
        for pool in self.pools:
            pool.close()
