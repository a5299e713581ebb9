"""Repeats requests after faults that came before the response began, and after some error responses (`client.retries`).

A repeated request stays in flight: its user waits, it counts against the cap, and its latency counts from its first attempt. The first
time, it waits for `retry_backoff`, then twice as long each time, but at most a minute; or as long as the response says. When the total
timeout has passed since its first attempt, it is not repeated any more.
"""

from collections.abc import Callable

from inferometer.engine.connector import OnEnded, ResponseState
from inferometer.engine.inflight import Flight, keep_first_attempt
from inferometer.engine.job import Job
from inferometer.engine.run_state import RunState
from inferometer.records import CANCELLED
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Deadlines
from inferometer.types import End, Fail
from inferometer.units import NS

_UNSENT = frozenset(("connect_refused", "connect_failed"))
"""Faults of attempts that were never sent, and that a pool has not counted as attempts."""
_REPEATED = _UNSENT | {"closed", "reset"}
_LONGEST_WAIT = 60 * NS


class Retries:
    def __init__(
        self,
        job: Job,
        deadlines: Deadlines,
        state: RunState,
        on_ended: OnEnded,
        send: Callable[[Flight], None],
    ) -> None:
        """`on_ended` is called with requests that have ended for good; `send` sends a request again."""
        self._refusals = frozenset(f"http_{status}" for status in job.retry_statuses)
        self._most, self._backoff, self._total = job.retries, int(job.retry_backoff * NS), int(job.timeouts.total * NS)
        self._deadlines = deadlines
        self._state = state
        self._on_ended = on_ended
        self._send = send
        self._counts: dict[int, int] = {}  # how often each request in flight was repeated, by its id
        self._waiting: dict[int, tuple[Flight, ResponseState]] = {}  # requests that wait until they are repeated, by id

    def ended(self, flight: Flight, at: int, event: End | Fail, response: ResponseState) -> None:
        """Repeat a request that ended with a fault, or pass its end on."""
        is_fault = isinstance(event, Fail) and (
            event.code in self._refusals or (event.code in _REPEATED and not flight.first_byte)
        )
        count = self._counts.get(flight.id, 0) if self._counts or is_fault else 0
        if (
            is_fault
            and count < self._most
            and not self._state.stopping
            and self._repeat(flight, response, event, count)
        ):
            return
        if count:
            del self._counts[flight.id]
            if is_fault:
                self._count_attempt(flight, event)
        self._on_ended(flight, at, event, response)

    def cancel(self) -> None:
        """End the requests that wait to be repeated."""
        waiting, self._waiting = self._waiting, {}
        at = now()
        for flight, response in waiting.values():
            self._counts.pop(flight.id, None)
            self._on_ended(flight, at, Fail(CANCELLED, "still waiting to be repeated"), response)

    def _repeat(self, flight: Flight, response: ResponseState, event: End | Fail, count: int) -> bool:
        """Repeat the request after a wait; return False if that would be too late."""
        # Without a connection, the attempt began when the request was due, or when the cap let it through.
        began = flight.sent or flight.intended + flight.held
        after = event.retry_after * NS if isinstance(event, Fail) else 0
        due = now() + (after or min(self._backoff << count, _LONGEST_WAIT))
        if self._total and due > (flight.first_attempt or (began,))[0] + self._total:
            return False
        flight.sent, flight.first_byte = began, 0
        keep_first_attempt(flight)
        self._counts[flight.id] = count + 1
        self._count_attempt(flight, event)
        self._waiting[flight.id] = flight, response
        self._deadlines.at(due, lambda: self._send_again(flight))
        return True

    def _count_attempt(self, flight: Flight, event: End | Fail) -> None:
        if isinstance(event, Fail) and event.code in _UNSENT:
            flight.attempts += 1

    def _send_again(self, flight: Flight) -> None:
        if self._waiting.pop(flight.id, None) is not None:
            assert flight.first_attempt is not None
            flight.wasted = now() - flight.first_attempt[0]
            self._send(flight)
