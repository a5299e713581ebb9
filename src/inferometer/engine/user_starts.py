"""When the users of a closed loop start: spread over the stage's ramp-up, so that they do not send in step."""

from inferometer.engine.inflight import Flight
from inferometer.engine.requests import Due
from inferometer.types import ClosedStage


class UserStarts:
    """The users who have not started yet. `next_at` is the instant of the next start."""

    def __init__(self, plan: ClosedStage, users: int) -> None:
        self.next_at = 0
        self._next_user, self._users = 0, users
        self._concurrency = plan.concurrency
        self._gap = plan.ramp_up // plan.concurrency
        self._may_shorten = plan.ramp_is_limit

    @property
    def is_pending(self) -> bool:
        return self._next_user < self._users

    def due(self, at: int) -> list[Due]:
        """Return the users who start by then, each with its instant."""
        due = []
        while self.is_pending and self.next_at <= at:
            due.append((self._next_user, self.next_at))
            self._next_user += 1
            self.next_at += self._gap
        return due

    def shorten(self, response: Flight) -> bool:
        """Spread the remaining starts over the time that the first response took, if that is less; return whether it is."""
        may_shorten, self._may_shorten = self._may_shorten, False
        gap = (response.done - response.sent) // self._concurrency
        if not may_shorten or gap >= self._gap:
            return False
        self._gap = gap
        self.next_at = min(self.next_at, response.done + gap)
        return True
