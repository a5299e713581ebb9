"""What decides when the next request goes: the plan's instants (open loop), or users who wait for answers (closed loop).

A stage is started with the instant it starts at and with what to call when the next one may start. It asks for requests
through `Launcher`, which is the shard.
"""

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
_BACKOFF = 10_000_000
_MAX_BACKOFF = 1_000_000_000
"""A closed loop's user whose request failed waits 10 ms, then twice that, up to 1 s, until one succeeds: a server that
refuses everything at once is not asked a million times."""


class Launcher(Protocol):
    agenda: Agenda
    stopping: bool

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
        self._start = 0
        self._early = min(_EARLY, plan.duration // max(5 * len(self._instants), 1))
        self._is_over = False
        self._then: Then = lambda at: None

    def start(self, at: int, then: Then) -> None:
        self._start = at
        self._then = then
        agenda = self._launcher.agenda
        if self._instants:
            agenda.at(at + self._instants[0] - self._early, self._send)
        agenda.at(at + self._plan.duration, self._time_is_up)

    def _time_is_up(self) -> None:
        """Hand over to the next stage, once all that was due is sent: a client that is late still owes it."""
        self._is_over = True
        if self._next == len(self._instants):
            self._then(self._start + self._plan.duration)

    def _send(self) -> None:
        """Send what is due, or nearly; when late, all of it, each charged with its own lateness."""
        launcher, plan, instants, start = self._launcher, self._plan, self._instants, self._start
        place = self._next
        stop = min(place + _AT_ONCE, len(instants))
        while place < stop and (intended := start + instants[place]) - now() <= self._early:
            if launcher.stopping:
                return
            flight = launcher.flight(plan.first_id + place * plan.id_step, self._index, intended)
            place += 1
            spin_until(intended)
            launcher.release(flight, plan.cap, plan.drop)
        self._next = place
        if place < len(instants):
            launcher.agenda.at(start + instants[place] - self._early, self._send)
        elif self._is_over:
            self._time_is_up()

    def freed(self, flight: Flight, at: int, failed: bool) -> None:
        """An answer came: nothing to do, the plan decides."""


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

    def _finish(self, at: int) -> None:
        if not self._over:
            self._over = True
            self._then(at)

    def _ask(self, user: int, ready: int) -> None:
        if self._over or self._launcher.stopping or self._issued >= self._limit:
            self._active -= 1
            if not self._active:
                self._finish(now())
            return
        plan, launcher = self._plan, self._launcher
        flight = launcher.flight(plan.first_id + self._issued * plan.id_step, self._index, ready, user)
        self._issued += 1
        launcher.release(flight, 0, False)

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
