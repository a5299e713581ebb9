"""Decide when the next request is sent: at the plan's instants (open loop), or when a user's response has arrived (closed loop).

A driver is started with the instant at which its stage starts, and with a callback for when the next stage may start. It makes and
sends requests through `Launcher`, which is the shard's dispatcher.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from inferometer.engine.awake import Awake
from inferometer.engine.id_supply import IdSupply
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.requests import NO_USER, Due
from inferometer.engine.run_state import RunState
from inferometer.engine.user_starts import UserStarts
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Deadlines
from inferometer.timing.timer import spin_until
from inferometer.types import ClosedStage, End, Fail, OpenStage
from inferometer.wire.failures import NOT_REACHED

if TYPE_CHECKING:
    from inferometer.engine.due_turns import DueTurns
    from inferometer.engine.sequences import Sequences

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
_BACKOFF = 10_000_000
_MAX_BACKOFF = 1_000_000_000
"""A closed loop's user whose request failed waits 10 ms, then twice as long each time, up to 1 s, until a request succeeds. Otherwise
a server that refuses everything immediately would be sent millions of requests."""
_REFUSED = ("http_", "grpc_", "error_body", "error_frame")
_OUTCOME_UNKNOWN = frozenset(("http_502", "http_504", "grpc_DEADLINE_EXCEEDED", "grpc_CANCELLED"))
"""An error response means that the server refused the request, except for these: whoever sends them may not know its outcome."""


class Launcher(Protocol):
    """Makes and sends requests for the drivers (dispatcher.py)."""

    deadlines: Deadlines
    state: RunState
    awake: Awake
    sequences: "Sequences | None"
    """Set if users send requests in sequences, each from its first to its last. None: requests are independent."""

    def make(self, stage: int, ids: Sequence[int], due: Sequence[Due]) -> list[Flight]: ...

    def release(self, flight: Flight, cap: int, drop: bool) -> None: ...

    def launch(self, flights: Sequence[Flight]) -> None: ...

    def is_awaiting(self) -> bool:
        """Return whether a request has been sent whose response is not complete."""


class OpenLoop:
    """Sends requests at the plan's instants, whatever the server does."""

    def __init__(self, launcher: Launcher, index: int, plan: OpenStage) -> None:
        self._launcher = launcher
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
        deadlines = self._launcher.deadlines
        if self._instants:
            due = at + self._instants[0] - self._early
            deadlines.at(due, self._send)
            self._launcher.awake.expect_send(due)
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
        launcher, plan, instants, start = self._launcher, self._plan, self._instants, self._start
        index = self._next
        stop = min(index + _MAX_BURST, len(instants))
        while index < stop and (intended := start + instants[index]) - now() <= self._early:
            if launcher.state.stopping:
                return
            flight = self._ready.popleft() if self._ready else self._make(index)
            index += 1
            launcher.state.spun += spin_until(intended)
            launcher.release(flight, plan.cap, plan.drop)
        self._next = index
        if index < len(instants):
            due = start + instants[index] - self._early
            launcher.deadlines.at(due, self._send)
            launcher.awake.expect_send(due)
            self._make_ahead(due)
        elif self._is_over:
            self._time_is_up()

    def _make(self, index: int) -> Flight:
        id = self._plan.first_id + index * self._plan.id_step
        return self._launcher.make(self._index, [id], [(NO_USER, self._start + self._instants[index])])[0]

    def _make_ahead(self, due: int) -> None:
        """Make the next requests while nothing is due, so that those of a burst can be sent as close together as planned."""
        ready = self._ready
        last = min(self._next + _AHEAD, len(self._instants))
        while self._next + len(ready) < last and due - now() > _TIME_TO_MAKE:
            ready.append(self._make(self._next + len(ready)))

    def freed(self, ended: Sequence[Ended]) -> None:
        """Send nothing: the plan decides. Only note whether the server was reached."""
        launcher = self._launcher
        if launcher.state.unreached_since and any(_reached_server(event) for _, event, _ in ended):
            launcher.state.unreached_since = 0

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

    keeps_user = True

    def send_turn(self, flight: Flight) -> None:
        """Send a session's next turn, which is due."""
        self._launcher.release(flight, self._plan.cap, self._plan.drop)


class ClosedLoop:
    """Keeps a fixed number of requests in flight: each user sends the next request when the response to the last has arrived."""

    def __init__(self, launcher: Launcher, index: int, plan: ClosedStage) -> None:
        self._launcher = launcher
        self._index = index
        self._plan = plan
        self._users = min(plan.concurrency, plan.requests) if plan.requests else plan.concurrency
        self._starts = UserStarts(plan, self._users)
        self._turns: DueTurns | None = None
        if plan.by_request:
            from inferometer.engine import due_turns  # noqa: PLC0415 - few runs need it

            self._turns = due_turns.DueTurns()
        self._has_reserved_ids = launcher.sequences is None and self._turns is None
        self._ids = IdSupply(plan, reserved=self._users if self._has_reserved_ids else 0)
        self._waiting: list[Due] = []  # users who wait for the parent to deal out more requests
        self._active = 0
        self._is_over = False
        self._on_over: OnOver = lambda at: None
        self._failures = [0] * plan.concurrency
        self._pausing: set[int] = set()  # users who wait before their next request
        self._committed = 0  # sequences: requests sent, plus those still to come in open sequences

    def start(self, at: int, on_over: OnOver) -> None:
        plan = self._plan
        self._on_over = on_over
        if plan.duration:
            self._launcher.deadlines.at(at + plan.duration, lambda: self._finish(at + plan.duration))
        self._active = self._users
        if not self._users:
            self._finish(at)
            return
        self._starts.next_at = at + plan.ramp_offset
        self._launcher.deadlines.at(self._starts.next_at, self._start_users)

    def _start_users(self) -> None:
        """Let the users whose start has come send their first requests."""
        if self._is_ending or not (due := self._starts.due(now())):
            return  # not due: the ramp-up was shortened, and another callback was quicker
        if self._starts.is_pending:
            self._launcher.deadlines.at(self._starts.next_at, self._start_users)
        if not self._has_reserved_ids:
            self._send(due)
        else:
            ids = [self._plan.first_id + user * self._plan.id_step for user, _ in due]
            self._launcher.launch(self._launcher.make(self._index, ids, due))

    def end(self) -> None:
        """Let no user send again, and hand over to the next stage now."""
        self._finish(now())

    def _finish(self, at: int) -> None:
        if not self._is_over:
            self._is_over = True
            self.close_sequences()
            self._on_over(at)

    def close_sequences(self) -> None:
        """Close open sequences, as the stage or the run ends: users who pause do so now, the others when their response arrives."""
        sequences = self._launcher.sequences
        if sequences is not None:
            at = now()
            due = [(user, at) for user in sorted(self._pausing) if sequences.is_within((self._index, user))]
            self._pausing.difference_update(user for user, _ in due)
            if due:
                self._send(due)

    def _send(self, due: Sequence[Due]) -> None:
        """Send the next request of each user, as long as the stage continues."""
        launcher = self._launcher
        if self._turns is not None and not self._is_ending:
            due = self._send_turns(due, self._turns)
        if launcher.sequences is not None:
            allowed: Sequence[Due] = [each for each in due if self._may_continue_sequence(each[0], launcher.sequences)]
        else:
            allowed = [] if self._is_ending else due[: self._ids.left]
        if allowed:
            launcher.launch(launcher.make(self._index, self._ids.take(len(allowed)), allowed))
        if len(allowed) < len(due):
            if not self._ids.is_complete and not self._is_ending:
                self._waiting += due[len(allowed) :]
                return
            self._active -= len(due) - len(allowed)
        if not self._active:
            self._finish(now())

    def _send_turns(self, due: Sequence[Due], turns: "DueTurns") -> Sequence[Due]:
        """Send turns that are due, as far as there are any, and return the users who are left."""
        count = min(len(due), len(turns), self._ids.left)
        if count:
            self._ids.left -= count  # turns count, too, and have ids of their own
            self._launcher.launch([turns.take(each) for each in due[:count]])
        return due[count:]

    @property
    def issued(self) -> int | None:
        """The number of requests sent, or reserved for users who have not started; None if the parent deals out no requests."""
        return self._ids.used if self._plan.granted and not self._is_over else None

    @property
    def dealt_step(self) -> int:
        """The difference between neighbours of the ids that the parent deals out."""
        return self._plan.dealt_step

    def grant(self, ids: range, is_last: bool) -> None:
        """Take requests that the parent has dealt out, and let users send who have waited for them."""
        self._ids.add(ids, is_last)
        if self._waiting:
            due, self._waiting = self._waiting, []
            self._send(due)

    def _may_continue_sequence(self, user: int, sequences: "Sequences") -> bool:
        """Return whether the user may send another request: of its sequence (the END, if the run is ending), or of a new one."""
        if self._launcher.state.halted:
            return False
        own = (self._index, user)
        if sequences.is_within(own):
            if self._is_ending:
                self._committed -= sequences.close(own)
            return True
        length = sequences.next_length
        if self._is_ending or 0 < self._plan.requests < self._committed + length:
            return False
        self._committed += length
        sequences.begin(own)
        return True

    def may_continue(self) -> bool:
        """Return whether sessions may send another turn: they end with the stage."""
        return not self._is_over

    def next_turn_at(self, flight: Flight) -> int | None:
        """Return 0: a turn follows when its user has thought."""
        return 0

    @property
    def keeps_user(self) -> bool:
        """Whether a session keeps its user until its end. Otherwise the user is free after each turn."""
        return self._turns is None

    def send_turn(self, flight: Flight) -> None:
        """Send a session's next turn, which is due, or let it wait for a free user."""
        if self._turns is None:
            self._launcher.launch([flight])
        else:
            self._turns.add(flight)

    @property
    def _is_ending(self) -> bool:
        return self._is_over or self._launcher.state.stopping

    def freed(self, ended: Sequence[Ended]) -> None:
        """Let users whose requests ended send again, after a pause if they think or their request failed."""
        launcher = self._launcher
        sequences = launcher.sequences
        due: list[Due] = []
        for flight, event, _ in ended:
            user, pause = flight.user, self._plan.think
            failed = event.__class__ is Fail
            if failed:
                pause = max(pause, self._backoff(user))
                launcher.state.unreached_since = (
                    0 if _reached_server(event) else launcher.state.unreached_since or flight.done
                )
            else:
                self._failures[user] = launcher.state.unreached_since = 0
                if self._starts.is_pending and self._starts.shorten(flight):
                    launcher.deadlines.at(self._starts.next_at, self._start_users)
            if sequences is not None:
                self._committed -= sequences.ended((self._index, user), failed, _may_be_accepted(flight, event))
            if pause and not self._is_ending:
                self._send_after(pause, flight)
            else:
                due.append((user, flight.done))
        if due:
            self._send(due)
        if launcher.state.unreached_since:
            self._give_up_if_unreached(ended[-1][0].done)

    def _backoff(self, user: int) -> int:
        failures = self._failures[user]
        self._failures[user] = min(failures + 1, 10)
        return min(_BACKOFF << failures, _MAX_BACKOFF)

    def _give_up_if_unreached(self, at: int) -> None:
        """Give up a stage that only a number of requests ends, once no request has reached the server for
        server.timeouts.unreached: with each user trying once per second, it would last for hours. A stage that follows does not wait for as long again."""
        launcher = self._launcher
        limit = launcher.state.unreached_limit
        has_waited = limit and at - launcher.state.unreached_since >= limit
        if has_waited and not self._plan.duration and not self._is_over and not launcher.is_awaiting():
            launcher.state.given_up.append(self._index)
            self._finish(now())

    def _send_after(self, pause: int, flight: Flight) -> None:
        user, at = flight.user, flight.done + pause
        self._pausing.add(user)
        self._launcher.deadlines.at(at, lambda: self._resume(user, at))

    def _resume(self, user: int, at: int) -> None:
        if user in self._pausing:  # it may have closed its sequence in the meantime
            self._pausing.discard(user)
            self._send([(user, at)])


def _reached_server(event: End | Fail) -> bool:
    return not isinstance(event, Fail) or event.code not in NOT_REACHED


def _may_be_accepted(flight: Flight, event: End | Fail) -> bool:
    """Return whether the server may have accepted the request: it was sent, and no response says that it was refused."""
    if not isinstance(event, Fail):
        return True
    return bool(flight.sent) and (event.code in _OUTCOME_UNKNOWN or not event.code.startswith(_REFUSED))


Driver = OpenLoop | ClosedLoop


def driver(launcher: Launcher, index: int, plan: OpenStage | ClosedStage) -> Driver:
    return OpenLoop(launcher, index, plan) if isinstance(plan, OpenStage) else ClosedLoop(launcher, index, plan)
