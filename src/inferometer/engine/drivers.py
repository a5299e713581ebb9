"""What decides when the next request goes: the plan's instants (open loop), or users who wait for answers (closed loop).

A stage is started with the instant it starts at and with what to call when the next one may start. It asks for requests
through `Launcher`, which is the shard.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from inferometer.engine.deadlines import Deadlines
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.requests import NOBODY, Due
from inferometer.engine.run_state import RunState
from inferometer.engine.sequences import Sequences
from inferometer.records import UNREACHED
from inferometer.timing.clock import now
from inferometer.timing.timer import spin_until
from inferometer.types import ClosedStage, End, Fail, OpenStage
from inferometer.units import NS

Then = Callable[[int], None]
"""Called with the instant at which the next stage starts."""

_AT_ONCE = 32
"""Late requests sent in one go before answers are looked at again."""
_EARLY = 80_000
"""An open loop wakes this long before an instant and spins up to it, because a sleeping processor wakes late by about as
much; but for at most a fifth of the mean gap, so that it does not spend its time on that."""
_AHEAD = 8
"""Requests that an open loop makes before they are due, when it has the time."""
_TIME_TO_MAKE = 30_000
_BACKOFF = 10_000_000
_MAX_BACKOFF = 1_000_000_000
"""A closed loop's user whose request failed waits 10 ms, then twice that, up to 1 s, until one succeeds: a server that
refuses everything at once is not asked a million times."""
_NO_CONNECTION = frozenset(("connect_refused", "connect_failed", "connect_timeout", "tls"))
"""The failures of requests that did not get to the server."""
_REFUSED = ("http_", "grpc_", "error_body", "error_frame")
_UNTOLD = frozenset(("http_502", "http_504", "grpc_DEADLINE_EXCEEDED", "grpc_CANCELLED"))
"""A server's answer says that it refused the request, but for these: whoever gives them may not know what became of it."""


class Launcher(Protocol):
    """What the drivers send through (dispatcher.py)."""

    deadlines: Deadlines
    state: RunState
    sequences: Sequences | None
    """Users send requests in sequences, each from its first to its last; None: every request stands alone."""

    def make(self, stage: int, ids: Sequence[int], due: Sequence[Due]) -> list[Flight]: ...

    def release(self, flight: Flight, cap: int, drop: bool) -> None: ...

    def launch(self, flights: Sequence[Flight]) -> None: ...

    def is_awaiting(self) -> bool:
        """A request has been sent whose response is not complete."""


class OpenLoop:
    """Sends at the plan's instants, whatever the server does."""

    def __init__(self, launcher: Launcher, index: int, plan: OpenStage) -> None:
        self._launcher = launcher
        self._index = index
        self._plan = plan
        self._instants: list[int] = plan.instants.tolist()
        self._next = 0
        self._ready: deque[Flight] = deque()  # made while there was time, so that they only have to be sent
        self._start = 0
        self._early = min(_EARLY, plan.duration // max(5 * len(self._instants), 1))
        self._is_over = False
        self._is_past = False
        self._then: Then = lambda at: None

    def start(self, at: int, then: Then) -> None:
        self._start = at
        self._then = then
        deadlines = self._launcher.deadlines
        if self._instants:
            deadlines.at(at + self._instants[0] - self._early, self._send)
        deadlines.at(at + self._plan.duration, self._time_is_up)

    def end(self) -> None:
        """Send nothing more, and hand over to the next stage now."""
        self._ready.clear()
        self._hand_over(now())

    def _hand_over(self, at: int) -> None:
        if not self._is_past:
            self._is_past = True
            self._then(at)

    def _time_is_up(self) -> None:
        """Hand over to the next stage, once all that was due is sent: a client that is late still owes it."""
        self._is_over = True
        if self._next == len(self._instants):
            self._hand_over(self._start + self._plan.duration)

    def _send(self) -> None:
        """Send what is due, or nearly; when late, all of it, each charged with its own lateness."""
        if self._is_past:
            return
        launcher, plan, instants, start = self._launcher, self._plan, self._instants, self._start
        place = self._next
        stop = min(place + _AT_ONCE, len(instants))
        while place < stop and (intended := start + instants[place]) - now() <= self._early:
            if launcher.state.stopping:
                return
            flight = self._ready.popleft() if self._ready else self._make(place)
            place += 1
            spin_until(intended)
            launcher.release(flight, plan.cap, plan.drop)
        self._next = place
        if place < len(instants):
            due = start + instants[place] - self._early
            launcher.deadlines.at(due, self._send)
            self._make_ahead(due)
        elif self._is_over:
            self._time_is_up()

    def _make(self, place: int) -> Flight:
        id = self._plan.first_id + place * self._plan.id_step
        return self._launcher.make(self._index, [id], [(NOBODY, self._start + self._instants[place])])[0]

    def _make_ahead(self, due: int) -> None:
        """Make the next requests while nothing is due: what comes in a burst is then sent as close together as it should be."""
        ready = self._ready
        last = min(self._next + _AHEAD, len(self._instants))
        while self._next + len(ready) < last and due - now() > _TIME_TO_MAKE:
            ready.append(self._make(self._next + len(ready)))

    def freed(self, ended: Sequence[Ended]) -> None:
        """Answers came: nothing to send, the plan decides."""
        launcher = self._launcher
        if launcher.state.unreached_since and any(_got_through(event) for _, event, _ in ended):
            launcher.state.unreached_since = 0

    def close_sequences(self) -> None:
        """There are none: their requests wait for answers."""

    def may_continue(self) -> bool:
        """Sessions that were started run to their end, as requests in flight do."""
        return True

    @property
    def cap(self) -> tuple[int, bool]:
        return self._plan.cap, self._plan.drop


class ClosedLoop:
    """Keeps so many requests in flight."""

    def __init__(self, launcher: Launcher, index: int, plan: ClosedStage) -> None:
        self._launcher = launcher
        self._index = index
        self._plan = plan
        self._issued = 0
        self._limit = plan.requests or 1 << 62
        self._active = 0
        self._over = False
        self._then: Then = lambda at: None
        self._failures = [0] * plan.concurrency
        self._pausing: set[int] = set()  # users
        self._begun = 0  # sequences: requests sent, and those that sequences under way still hold

    def start(self, at: int, then: Then) -> None:
        plan, deadlines = self._plan, self._launcher.deadlines
        self._then = then
        if plan.duration:
            deadlines.at(at + plan.duration, lambda: self._finish(at + plan.duration))
        users = min(plan.concurrency, plan.requests) if plan.requests else plan.concurrency
        if not users:
            self._finish(at)
        self._active = users
        for user in range(users):
            ready = at + plan.ramp_offset + plan.ramp_up * user // plan.concurrency
            deadlines.at(ready, lambda user=user, ready=ready: self._ask([(user, ready)]))  # type: ignore[misc]

    def end(self) -> None:
        """Nobody asks again; hand over to the next stage now."""
        self._finish(now())

    def _finish(self, at: int) -> None:
        if not self._over:
            self._over = True
            self.close_sequences()
            self._then(at)

    def close_sequences(self) -> None:
        """The stage or the run ends: whoever pauses within a sequence closes it now, the others when their answers are there."""
        sequences = self._launcher.sequences
        if sequences is not None:
            at = now()
            asking = [(user, at) for user in sorted(self._pausing) if sequences.is_within((self._index, user))]
            self._pausing.difference_update(user for user, _ in asking)
            if asking:
                self._ask(asking)

    def _ask(self, asking: Sequence[Due]) -> None:
        """Send the next request of each, as long as the stage goes on."""
        plan, launcher = self._plan, self._launcher
        if launcher.sequences is not None:
            may: Sequence[Due] = [each for each in asking if self._may_in_sequence(each[0], launcher.sequences)]
        else:
            may = asking[: 0 if launcher.state.stopping or self._over else self._limit - self._issued]
        if may:
            first = plan.first_id + self._issued * plan.id_step
            self._issued += len(may)
            ids = range(first, first + len(may) * plan.id_step, plan.id_step)
            launcher.launch(launcher.make(self._index, ids, may))
        self._active -= len(asking) - len(may)
        if not self._active:
            self._finish(now())

    def _may_in_sequence(self, user: int, sequences: Sequences) -> bool:
        """Whether the user goes on: with its sequence (when the stage or the run ends, to its END at once), or with another."""
        if self._launcher.state.halted:
            return False
        own = (self._index, user)
        if sequences.is_within(own):
            if self._is_ending:
                self._begun -= sequences.close(own)
            return True
        length = sequences.next_length
        if self._is_ending or self._begun + length > self._limit:
            return False
        self._begun += length
        sequences.begin(own)
        return True

    def may_continue(self) -> bool:
        """A user's session ends with the stage, at its next turn."""
        return not self._over

    @property
    def cap(self) -> tuple[int, bool]:
        return 0, False

    @property
    def _is_ending(self) -> bool:
        return self._over or self._launcher.state.stopping

    def freed(self, ended: Sequence[Ended]) -> None:
        """Users' answers came: they ask again, after a pause if they think or the server fails."""
        launcher = self._launcher
        sequences = launcher.sequences
        asking: list[Due] = []
        for flight, event, _ in ended:
            user, pause = flight.user, self._plan.think
            failed = event.__class__ is Fail
            if failed:
                pause = max(pause, self._backoff(user))
                launcher.state.unreached_since = (
                    0 if _got_through(event) else launcher.state.unreached_since or flight.done
                )
            else:
                self._failures[user] = launcher.state.unreached_since = 0
            if sequences is not None:
                self._begun -= sequences.answered((self._index, user), failed, _may_be_taken(flight, event))
            if pause and not self._is_ending:
                self._ask_after(pause, flight)
            else:
                asking.append((user, flight.done))
        if asking:
            self._ask(asking)
        if launcher.state.unreached_since:
            self._look_for_server(ended[-1][0].done)

    def _backoff(self, user: int) -> int:
        failures = self._failures[user]
        self._failures[user] = min(failures + 1, 10)
        return min(_BACKOFF << failures, _MAX_BACKOFF)

    def _look_for_server(self, at: int) -> None:
        """Give a stage up that has no end but a number of requests, once nothing has got to the server for long: with every
        user asking once a second, it would go on for hours. A stage that follows does not wait for as long again."""
        launcher = self._launcher
        has_waited = at - launcher.state.unreached_since >= UNREACHED * NS
        if has_waited and not self._plan.duration and not self._over and not launcher.is_awaiting():
            launcher.state.given_up.append(self._index)
            self._finish(now())

    def _ask_after(self, pause: int, flight: Flight) -> None:
        user, at = flight.user, flight.done + pause
        self._pausing.add(user)
        self._launcher.deadlines.at(at, lambda: self._resume(user, at))

    def _resume(self, user: int, at: int) -> None:
        if user in self._pausing:  # and has not closed its sequence meanwhile
            self._pausing.discard(user)
            self._ask([(user, at)])


def _got_through(event: End | Fail) -> bool:
    return not isinstance(event, Fail) or event.code not in _NO_CONNECTION


def _may_be_taken(flight: Flight, event: End | Fail) -> bool:
    """The server may have taken the request: it was sent, and no answer says that it was refused."""
    if not isinstance(event, Fail):
        return True
    return bool(flight.sent) and (event.code in _UNTOLD or not event.code.startswith(_REFUSED))


Driver = OpenLoop | ClosedLoop


def driver(launcher: Launcher, index: int, plan: OpenStage | ClosedStage) -> Driver:
    return OpenLoop(launcher, index, plan) if isinstance(plan, OpenStage) else ClosedLoop(launcher, index, plan)
