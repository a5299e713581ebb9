"""What decides when the next request goes: the plan's instants (open loop), or users who wait for answers (closed loop).

A stage is started with the instant it starts at and with what to call when the next one may start. It asks for requests
through `Launcher`, which is the shard.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from inferometer.engine.agenda import Agenda
from inferometer.engine.flight import Flight
from inferometer.timing.clock import now
from inferometer.timing.timer import spin_until
from inferometer.types import ClosedStage, OpenStage

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


class Launcher(Protocol):
    agenda: Agenda
    stopping: bool
    sequence: int
    """Requests of a sequence, which a user sends from its first to its last; 0: there are none."""

    def flight(self, id: int, stage: int, intended: int, user: int = -1) -> Flight: ...

    def release(self, flight: Flight, cap: int, drop: bool) -> None: ...


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
        plan = self._plan
        return self._launcher.flight(
            plan.first_id + place * plan.id_step, self._index, self._start + self._instants[place]
        )

    def _make_ahead(self, due: int) -> None:
        """Make the next requests while nothing is due: what comes in a burst is then sent as close together as it should be."""
        ready = self._ready
        last = min(self._next + _AHEAD, len(self._instants))
        while self._next + len(ready) < last and due - now() > _TIME_TO_MAKE:
            ready.append(self._make(self._next + len(ready)))

    def freed(self, flight: Flight, at: int, failed: bool) -> None:
        """An answer came: nothing to do, the plan decides."""

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
            agenda.at(ready, lambda user=user, ready=ready: self._ask(user, ready))  # type: ignore[misc]

    def end(self) -> None:
        """Nobody asks again; hand over to the next stage now."""
        self._finish(now())

    def _finish(self, at: int) -> None:
        if not self._over:
            self._over = True
            self._then(at)

    def _ask(self, user: int, ready: int) -> None:
        plan, launcher = self._plan, self._launcher
        is_plain = not (launcher.sequence or launcher.stopping or self._over or self._issued >= self._limit)
        if not is_plain and not self._may_ask(user):
            self._active -= 1
            if not self._active:
                self._finish(now())
            return
        flight = launcher.flight(plan.first_id + self._issued * plan.id_step, self._index, ready, user)
        self._issued += 1
        launcher.release(flight, 0, False)

    def _may_ask(self, user: int) -> bool:
        """Whether the stage goes on. A sequence that was begun is ended: a server would keep its state, and its place, for long."""
        if self._launcher.stopping:
            return False
        if self._left[user]:
            self._left[user] -= 1
            return True
        length = self._launcher.sequence
        if not length or self._over or self._begun + length > self._limit:
            return False
        self._begun += length
        self._left[user] = length - 1
        return True

    @property
    def is_within_sequences(self) -> bool:
        """Somebody has begun a sequence and is to send the rest of it, stage over or not."""
        return any(self._left)

    def freed(self, flight: Flight, at: int, failed: bool) -> None:
        """A user's answer came at `at`: ask again, after a pause if the user thinks or the server fails."""
        user = flight.user
        if not failed:
            self._failures[user] = 0
            if not self._plan.think:
                self._ask(user, at)
                return
            pause = self._plan.think
        else:
            pause = max(self._plan.think, min(_BACKOFF << self._failures[user], _MAX_BACKOFF))
            self._failures[user] = min(self._failures[user] + 1, 10)
        self._launcher.agenda.at(at + pause, lambda: self._ask(user, at + pause))


Driver = OpenLoop | ClosedLoop


def driver(launcher: Launcher, index: int, plan: OpenStage | ClosedStage) -> Driver:
    return OpenLoop(launcher, index, plan) if isinstance(plan, OpenStage) else ClosedLoop(launcher, index, plan)
