"""An open loop: requests are sent at the plan's instants.

A driver, of an open or a closed loop, is started with the instant at which its stage starts, and with a callback for when the next stage
may start. It makes and sends requests through the shard's dispatcher.
"""

from collections import deque
from collections.abc import Callable, Sequence

from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.requests import NO_USER
from inferometer.timing.clock import now
from inferometer.timing.timer import spin_until
from inferometer.types import End, Fail, OpenStage
from inferometer.wire.failures import NOT_REACHED

OnOver = Callable[[int], None]
"""Called with the instant at which the next stage starts."""

_MAX_BURST = 32
"""Late requests sent in one go before responses are read again."""
_EARLY = 80_000
"""An open loop wakes this long before an instant and spins until then, because a sleeping processor wakes up about this much too
late. It spins for at most a fifth of the mean gap, so that it does not spend most of its time on that."""
_AHEAD = 8
"""Requests that an open loop makes in advance when it has the time."""
_TIME_TO_MAKE = 30_000


class OpenLoop:
    """Sends requests at the plan's instants, whatever the server does."""

    keeps_user = True

    def __init__(self, dispatcher: Dispatcher, index: int, plan: OpenStage) -> None:
        self._dispatcher = dispatcher
        self._index = index
        self._plan = plan
        self._instants: list[int] = plan.instants.tolist()
        self._next = 0
        self._ready: deque[Flight] = deque()  # made in advance, so that they only have to be sent
        self._start = 0
        self._early = min(_EARLY, plan.duration // max(5 * len(self._instants), 1))
        self._is_over = False
        self._is_past = False
        self._on_over: OnOver = lambda at: None

    def start(self, at: int, on_over: OnOver) -> None:
        self._start = at
        self._on_over = on_over
        deadlines = self._dispatcher.deadlines
        if self._instants:
            due = at + self._instants[0] - self._early
            deadlines.at(due, self._send)
            self._dispatcher.awake.expect_send(due)
        deadlines.at(at + self._plan.duration, self._time_is_up)

    def end(self) -> None:
        """Send nothing more, and hand over to the next stage now."""
        self._ready.clear()
        self._hand_over(now())

    def _hand_over(self, at: int) -> None:
        if not self._is_past:
            self._is_past = True
            self._on_over(at)

    def _time_is_up(self) -> None:
        """Hand over to the next stage, but only once all requests are sent: a client that is late still has to send them."""
        self._is_over = True
        if self._next == len(self._instants):
            self._hand_over(self._start + self._plan.duration)

    def _send(self) -> None:
        """Send the requests that are due, or nearly. A late client sends all of them, each charged with its own lateness."""
        if self._is_past:
            return
        dispatcher, plan, instants, start = self._dispatcher, self._plan, self._instants, self._start
        index = self._next
        stop = min(index + _MAX_BURST, len(instants))
        while index < stop and (intended := start + instants[index]) - now() <= self._early:
            if dispatcher.state.stopping:
                return
            flight = self._ready.popleft() if self._ready else self._make(index)
            index += 1
            dispatcher.state.spun += spin_until(intended)
            dispatcher.release(flight, plan.cap, plan.drop)
        self._next = index
        if index < len(instants):
            due = start + instants[index] - self._early
            dispatcher.deadlines.at(due, self._send)
            dispatcher.awake.expect_send(due)
            self._make_ahead(due)
        elif self._is_over:
            self._time_is_up()

    def _make(self, index: int) -> Flight:
        id = self._plan.first_id + index * self._plan.id_step
        return self._dispatcher.make(self._index, [id], [(NO_USER, self._start + self._instants[index])])[0]

    def _make_ahead(self, due: int) -> None:
        """Make the next requests while nothing is due, so that those of a burst can be sent as close together as planned."""
        ready = self._ready
        last = min(self._next + _AHEAD, len(self._instants))
        while self._next + len(ready) < last and due - now() > _TIME_TO_MAKE:
            ready.append(self._make(self._next + len(ready)))

    def freed(self, ended: Sequence[Ended]) -> None:
        """Send nothing: the plan decides. Only note whether the server was reached."""
        state = self._dispatcher.state
        if state.unreached_since and any(reached_server(event) for _, event, _ in ended):
            state.unreached_since = 0

    def close_sequences(self) -> None:
        """Do nothing: there are no sequences in an open loop, since their requests wait for responses."""

    def may_continue(self) -> bool:
        """Return True: sessions that were started run to their end, as requests in flight do."""
        return True

    def next_turn_at(self, flight: Flight) -> int | None:
        """Return the instant that the session's next turn is planned for, 0 if it follows the turn before; None: there is no next turn."""
        if self._plan.turns is None:
            return 0
        due = self._plan.turns.due(flight.session, flight.turn + 1)
        return None if due is None else self._start + due

    def send_turn(self, flight: Flight) -> None:
        """Send a session's next turn, which is due."""
        self._dispatcher.release(flight, self._plan.cap, self._plan.drop)


def reached_server(event: End | Fail) -> bool:
    return not isinstance(event, Fail) or event.code not in NOT_REACHED
