"""What decides when the next request goes: the plan's instants (open loop), or users who wait for answers (closed loop).

A stage is started with the instant it starts at and with what to call when the next one may start. It asks for requests
through `Launcher`, which is the shard.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from inferometer.engine.agenda import Agenda
from inferometer.engine.flight import Ended, Flight
from inferometer.timing.clock import now
from inferometer.timing.timer import spin_until
from inferometer.types import ClosedStage, Fail, OpenStage

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


Asking = tuple[int, int]
"""A user of a closed loop (open loop: NOBODY) who asks, and the instant at which the request is due."""
NOBODY = -1


class Launcher(Protocol):
    agenda: Agenda
    stopping: bool
    sequence: int
    """Requests of a sequence, which a user sends from its first to its last; 0: there are none."""

    def make(self, stage: int, ids: Sequence[int], asking: Sequence[Asking]) -> list[Flight]: ...

    def release(self, flight: Flight, cap: int, drop: bool) -> None: ...

    def launch(self, flights: Sequence[Flight]) -> None: ...


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
        agenda = self._launcher.agenda
        if self._instants:
            agenda.at(at + self._instants[0] - self._early, self._send)
        agenda.at(at + self._plan.duration, self._time_is_up)

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
            if launcher.stopping:
                return
            flight = self._ready.popleft() if self._ready else self._make(place)
            place += 1
            spin_until(intended)
            launcher.release(flight, plan.cap, plan.drop)
        self._next = place
        if place < len(instants):
            due = start + instants[place] - self._early
            launcher.agenda.at(due, self._send)
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
        """Answers came: nothing to do, the plan decides."""

    @property
    def is_within_sequences(self) -> bool:
        return False


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
        self._begun = 0  # requests sent, and those that the sequences under way still hold
        self._left = [0] * plan.concurrency  # of each user's sequence

    def start(self, at: int, then: Then) -> None:
        plan, agenda = self._plan, self._launcher.agenda
        self._then = then
        if plan.duration:
            agenda.at(at + plan.duration, lambda: self._finish(at + plan.duration))
        users = min(plan.concurrency, plan.requests) if plan.requests else plan.concurrency
        if not users:
            self._finish(at)
        self._active = users
        for user in range(users):
            ready = at + plan.ramp_offset + plan.ramp_up * user // plan.concurrency
            agenda.at(ready, lambda user=user, ready=ready: self._ask([(user, ready)]))  # type: ignore[misc]

    def end(self) -> None:
        """Nobody asks again; hand over to the next stage now."""
        self._finish(now())

    def _finish(self, at: int) -> None:
        if not self._over:
            self._over = True
            self._then(at)

    def _ask(self, asking: Sequence[Asking]) -> None:
        """Send the next request of each, as long as the stage goes on."""
        plan, launcher = self._plan, self._launcher
        if launcher.sequence:
            may: Sequence[Asking] = [each for each in asking if self._may_in_sequence(each[0])]
        else:
            may = asking[: 0 if launcher.stopping or self._over else self._limit - self._issued]
        if may:
            first = plan.first_id + self._issued * plan.id_step
            self._issued += len(may)
            ids = range(first, first + len(may) * plan.id_step, plan.id_step)
            launcher.launch(launcher.make(self._index, ids, may))
        self._active -= len(asking) - len(may)
        if not self._active:
            self._finish(now())

    def _may_in_sequence(self, user: int) -> bool:
        """Whether the user goes on. A sequence that was begun is ended: a server would keep its state, and its place, for long."""
        if self._launcher.stopping:
            return False
        if self._left[user]:
            self._left[user] -= 1
            return True
        length = self._launcher.sequence
        if self._over or self._begun + length > self._limit:
            return False
        self._begun += length
        self._left[user] = length - 1
        return True

    @property
    def is_within_sequences(self) -> bool:
        """Somebody has begun a sequence and is to send the rest of it, stage over or not."""
        return any(self._left)

    def freed(self, ended: Sequence[Ended]) -> None:
        """Users' answers came: they ask again, after a pause if they think or the server fails."""
        think, failures = self._plan.think, self._failures
        asking: list[Asking] = []
        for flight, event, _ in ended:
            user = flight.user
            if event.__class__ is Fail:
                self._ask_after(max(think, min(_BACKOFF << failures[user], _MAX_BACKOFF)), flight)
                failures[user] = min(failures[user] + 1, 10)
                continue
            failures[user] = 0
            if think:
                self._ask_after(think, flight)
            else:
                asking.append((user, flight.done))
        if asking:
            self._ask(asking)

    def _ask_after(self, pause: int, flight: Flight) -> None:
        asking = (flight.user, flight.done + pause)
        self._launcher.agenda.at(asking[1], lambda: self._ask([asking]))


Driver = OpenLoop | ClosedLoop


def driver(launcher: Launcher, index: int, plan: OpenStage | ClosedStage) -> Driver:
    return OpenLoop(launcher, index, plan) if isinstance(plan, OpenStage) else ClosedLoop(launcher, index, plan)
