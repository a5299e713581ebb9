"""Sessions: conversations whose next turn is made from the response to the turn before.

A load starts sessions as it would start single requests. A session then stays on its shard, its URL and, in a closed loop, with its
user until its last turn has ended or a turn has failed. Each later turn is due its think time after the end of the turn before.
"""

from collections.abc import Callable, Sequence

from inferometer.engine.deadlines import Deadlines
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.requests import Requests
from inferometer.types import TURN_STEP, Fail, Session, TurnResponse

Start = Callable[[int], Session]
"""Starts the session whose first turn is the shard's encoded request with this index."""


class Sessions:
    """The sessions of a shard that have not ended."""

    def __init__(self, start: Start, requests: Requests, deadlines: Deadlines) -> None:
        self._start = start
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

    def follow(
        self, ended: Sequence[Ended], may_continue: Callable[[Flight], bool], send: Callable[[Flight], None]
    ) -> list[Ended]:
        """Schedule the turns that come after these, and return the requests whose sessions are over."""
        over = []
        for each in ended:
            self._deadlines.catch_up()  # making a turn may take long
            flight, event, text = each
            following = None
            if not isinstance(event, Fail) and may_continue(flight):
                following = self._next(flight, text or "")
            if following is None:
                self._live.pop(flight.session, None)
                over.append(each)
            else:
                self._schedule(following, send)
        return over

    def _next(self, flight: Flight, text: str) -> Flight | None:
        """Return the turn after this one, or None if it was the last."""
        session = self._live.get(flight.session)
        if session is None:
            session = self._live[flight.session] = self._start(flight.index)
            next(session)  # yields its first turn, which is the one that has just ended
        try:
            request = session.send(TurnResponse(text, flight.n_in, flight.n_out))
        except StopIteration:
            return None
        return self._requests.make_turn(flight, flight.id + TURN_STEP, request)

    def _schedule(self, flight: Flight, send: Callable[[Flight], None]) -> None:
        def due() -> None:
            if self._waiting.pop(flight.session, None) is not None:
                send(flight)

        self._waiting[flight.session] = flight
        self._deadlines.at(flight.intended, due)
