"""Sessions: conversations whose next turn is made from the response to the turn before.

A load starts sessions as it would start single requests. A session then stays on its shard and its URL until its last turn has ended, or
until a turn has failed and failures are final. Each later turn is due its think time after the end of the turn before. In a closed loop
a session also stays with its user, unless the load counts requests (closed_loop.py).
"""

from collections.abc import Callable, Sequence

from inferometer.engine.course import Course
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.requests import Requests
from inferometer.records import CANCELLED, DROPPED
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Deadlines
from inferometer.types import TURN_STEP, Calls, Fail, Session, TurnResponse
from inferometer.wire.failures import NOT_REACHED

_FINAL = NOT_REACHED | {CANCELLED, DROPPED}
"""Failures that always end a session: the client did not send the turn, or the server could not be reached."""


class Sessions:
    """The sessions of a shard that have not ended."""

    def __init__(self, calls: Calls, requests: Requests, deadlines: Deadlines) -> None:
        assert calls.session is not None
        self._start = calls.session
        self._is_failure_final = calls.is_failure_final
        self._requests = requests
        self._deadlines = deadlines
        self._live: dict[int, Session] = {}
        self._waiting: dict[int, Flight] = {}

    def is_pending(self, may_continue: Callable[[Flight], bool]) -> bool:
        """Return whether a turn will be sent when its user has thought long enough."""
        return any(may_continue(flight) for flight in self._waiting.values())

    def cancel(self) -> None:
        """Send no further turn."""
        self._waiting.clear()
        self._live.clear()

    def follow(self, ended: Sequence[Ended], course: Course, send: Callable[[Flight], None]) -> list[Ended]:
        """Schedule the turns that come after these, and return the requests whose users are free."""
        free = []
        for each in ended:
            self._deadlines.catch_up()  # making a turn may take long
            flight, event, _ = each
            if flight.session < 0:  # a single request, of another traffic class
                free.append(each)
                continue
            following = None
            is_over = isinstance(event, Fail) and (self._is_failure_final or event.code in _FINAL)
            if not is_over and course.may_continue(flight):
                planned = course.driver(flight).next_turn_at(flight)
                following = None if planned is None else self._next(flight, isinstance(event, Fail), planned)
            if following is None:
                self._live.pop(flight.session, None)
            else:
                self._schedule(following, send)
            if following is None or not course.driver(flight).keeps_user:
                free.append(each)
        return free

    def _next(self, flight: Flight, is_failed: bool, planned: int) -> Flight | None:
        """Return the turn after this one, which may be `planned` for an instant; or None if it was the last."""
        session = self._live.get(flight.session)
        if session is None:
            session = self._live[flight.session] = self._start(flight.index)
            first = next(session)  # the turn that has just ended
            flight.turns = 1 + len(first.later)
        n_out = flight.n_out if flight.n_out >= 0 else sum(flight.counts) or -1
        n_in, reasoning = flight.n_in if flight.usage else -1, max(flight.reasoning, 0)
        try:
            request = session.send(TurnResponse(flight.content, n_in, n_out, is_failed, reasoning))
        except StopIteration:
            return None
        return self._requests.make_turn(flight, flight.id + TURN_STEP, request, planned)

    def _schedule(self, flight: Flight, send: Callable[[Flight], None]) -> None:
        ready = flight.intended + flight.held
        if ready <= now():
            send(flight)
            return

        def due() -> None:
            if self._waiting.pop(flight.session, None) is not None:
                send(flight)

        self._waiting[flight.session] = flight
        self._deadlines.at(ready, due)
