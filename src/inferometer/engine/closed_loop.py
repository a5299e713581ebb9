"""A closed loop: each of its users sends the next request when the response to the last has arrived."""

import heapq
from collections import deque
from collections.abc import Sequence

from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.open_loop import OnOver, reached_server
from inferometer.engine.requests import Due
from inferometer.engine.sequences import Sequences
from inferometer.timing.clock import now
from inferometer.types import ClosedStage, End, Fail

_BACKOFF = 10_000_000
_MAX_BACKOFF = 1_000_000_000
"""A user whose request failed waits 10 ms, then twice as long each time, up to 1 s, until a request succeeds. Otherwise a server that
refuses everything immediately would be sent millions of requests."""
_REFUSED = ("http_", "grpc_", "error_body", "error_frame")
_OUTCOME_UNKNOWN = frozenset(("http_502", "http_504", "grpc_DEADLINE_EXCEEDED", "grpc_CANCELLED"))
"""An error response means that the server refused the request, except for these: whoever sends them may not know its outcome."""
_UNBOUNDED = 1 << 40
"""More requests than a stage can send."""


class ClosedLoop:
    """Keeps a fixed number of requests in flight: each user sends the next request when the response to the last has arrived.

    If it counts requests (`by_request`), nobody waits for a session whose user thinks: the free user of the loop sends whichever turn is
    due, or starts a new session when none is. So the number of requests in flight stays the same, and the number of sessions follows.
    """

    def __init__(self, dispatcher: Dispatcher, index: int, plan: ClosedStage) -> None:
        self._dispatcher = dispatcher
        self._index = index
        self._plan = plan
        self._users = min(plan.concurrency, plan.requests) if plan.requests else plan.concurrency
        self._started = 0  # users who have sent their first request
        self._next_start = 0
        self._start_gap = plan.ramp_up // plan.concurrency
        self._may_shorten_ramp = plan.ramp_is_limit
        self.keeps_user = not plan.by_request
        """Whether a session keeps its user until its end. Otherwise the user is free after each turn, and sends whichever turn is due."""
        self._due_turns: list[
            tuple[int, int, Flight]
        ] = []  # a heap: the one that is due for the longest time is sent first
        self._has_reserved_ids = dispatcher.sequences is None and self.keeps_user
        self._ids = _IdSupply(plan, reserved=self._users if self._has_reserved_ids else 0)
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
            self._dispatcher.deadlines.at(at + plan.duration, lambda: self._finish(at + plan.duration))
        self._active = self._users
        if not self._users:
            self._finish(at)
            return
        self._next_start = at + plan.ramp_offset
        self._dispatcher.deadlines.at(self._next_start, self._start_users)

    def _start_users(self) -> None:
        """Let the users whose start has come send their first requests: they start spread over the ramp-up, not to send in step."""
        due: list[Due] = []
        at = now()
        while not self._is_ending and self._started < self._users and self._next_start <= at:
            due.append((self._started, self._next_start))
            self._started += 1
            self._next_start += self._start_gap
        if not due:
            return  # the ramp-up was shortened, and another callback was quicker
        if self._started < self._users:
            self._dispatcher.deadlines.at(self._next_start, self._start_users)
        if not self._has_reserved_ids:
            self._send(due)
        else:
            ids = [self._plan.first_id + user * self._plan.id_step for user, _ in due]
            self._dispatcher.launch(self._dispatcher.make(self._index, ids, due))

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
        sequences = self._dispatcher.sequences
        if sequences is not None:
            at = now()
            due = [(user, at) for user in sorted(self._pausing) if sequences.is_within((self._index, user))]
            self._pausing.difference_update(user for user, _ in due)
            if due:
                self._send(due)

    def _send(self, due: Sequence[Due]) -> None:
        """Send the next request of each user, as long as the stage continues."""
        dispatcher = self._dispatcher
        if self._due_turns and not self._is_ending:
            due = self._send_turns(due)
        if dispatcher.sequences is not None:
            allowed: Sequence[Due] = [
                each for each in due if self._may_continue_sequence(each[0], dispatcher.sequences)
            ]
        else:
            allowed = [] if self._is_ending else due[: self._ids.left]
        if allowed:
            dispatcher.launch(dispatcher.make(self._index, self._ids.take(len(allowed)), allowed))
        if len(allowed) < len(due):
            if not self._ids.is_complete and not self._is_ending:
                self._waiting += due[len(allowed) :]
                return
            self._active -= len(due) - len(allowed)
        if not self._active:
            self._finish(now())

    def _send_turns(self, due: Sequence[Due]) -> Sequence[Due]:
        """Send turns that are due, as far as there are any, and return the users who are left. A turn was held back by the load until its
        user was free."""
        turns = []
        for user, at in due[: min(len(self._due_turns), self._ids.left)]:
            flight = heapq.heappop(self._due_turns)[2]
            flight.user = user
            flight.held += max(at - flight.intended, 0)
            turns.append(flight)
        if turns:
            self._ids.left -= len(turns)  # turns count, too, and have ids of their own
            self._dispatcher.launch(turns)
        return due[len(turns) :]

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

    def _may_continue_sequence(self, user: int, sequences: Sequences) -> bool:
        """Return whether the user may send another request: of its sequence (the END, if the run is ending), or of a new one."""
        if self._dispatcher.state.halted:
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

    def send_turn(self, flight: Flight) -> None:
        """Send a session's next turn, which is due, or let it wait for a free user."""
        if self.keeps_user:
            self._dispatcher.launch([flight])
        else:
            heapq.heappush(self._due_turns, (flight.intended, flight.id, flight))

    @property
    def _is_ending(self) -> bool:
        return self._is_over or self._dispatcher.state.stopping

    def freed(self, ended: Sequence[Ended]) -> None:
        """Let users whose requests ended send again, after a pause if they think or their request failed."""
        dispatcher = self._dispatcher
        sequences = dispatcher.sequences
        due: list[Due] = []
        for flight, event, _ in ended:
            user, pause = flight.user, self._plan.think
            failed = event.__class__ is Fail
            if failed:
                pause = max(pause, self._backoff(user))
                dispatcher.state.unreached_since = (
                    0 if reached_server(event) else dispatcher.state.unreached_since or flight.done
                )
            else:
                self._failures[user] = dispatcher.state.unreached_since = 0
                if self._may_shorten_ramp:
                    self._shorten_ramp(flight)
            if sequences is not None:
                self._committed -= sequences.ended((self._index, user), failed, _may_be_accepted(flight, event))
            if pause and not self._is_ending:
                self._send_after(pause, flight)
            else:
                due.append((user, flight.done))
        if due:
            self._send(due)
        if dispatcher.state.unreached_since:
            self._give_up_if_unreached(ended[-1][0].done)

    def _shorten_ramp(self, response: Flight) -> None:
        """Spread the remaining starts over the time that the first response took, if that is less."""
        self._may_shorten_ramp = False
        gap = (response.done - response.sent) // self._plan.concurrency
        if self._started < self._users and gap < self._start_gap:
            self._start_gap = gap
            self._next_start = min(self._next_start, response.done + gap)
            self._dispatcher.deadlines.at(self._next_start, self._start_users)

    def _backoff(self, user: int) -> int:
        failures = self._failures[user]
        self._failures[user] = min(failures + 1, 10)
        return min(_BACKOFF << failures, _MAX_BACKOFF)

    def _give_up_if_unreached(self, at: int) -> None:
        """Give up a stage that only a number of requests ends, once no request has reached the server for
        server.timeouts.unreached: with each user trying once per second, it would last for hours. A stage that follows does not wait for as long again."""
        dispatcher = self._dispatcher
        limit = dispatcher.state.unreached_limit
        has_waited = limit and at - dispatcher.state.unreached_since >= limit
        if has_waited and not self._plan.duration and not self._is_over and not dispatcher.is_awaiting():
            dispatcher.state.given_up.append(self._index)
            self._finish(now())

    def _send_after(self, pause: int, flight: Flight) -> None:
        user, at = flight.user, flight.done + pause

        def resume() -> None:
            if user in self._pausing:  # it may have closed its sequence in the meantime
                self._pausing.discard(user)
                self._send([(user, at)])

        self._pausing.add(user)
        self._dispatcher.deadlines.at(at, resume)


class _IdSupply:
    """The ids of the requests that are still to be sent, in the order in which they are used: the shard's own, then those that the parent
    deals out during the stage (fleet/dealing.py). The first `reserved` ids are not part of it: they are those of the users' first requests."""

    def __init__(self, plan: ClosedStage, reserved: int) -> None:
        first, step = plan.first_id, plan.id_step
        self._total = plan.granted or plan.requests or _UNBOUNDED
        own = range(first + reserved * step, first + self._total * step, step)
        self._ranges = deque([own])
        self.left = len(own)
        self.is_complete = not plan.granted
        """Nothing more will be dealt out."""

    @property
    def used(self) -> int:
        """How many ids were taken or reserved."""
        return self._total - self.left

    def add(self, more: range, is_last: bool) -> None:
        """Add ids that the parent has dealt out."""
        self.is_complete = is_last
        self._ranges.append(more)
        self._total += len(more)
        self.left += len(more)

    def take(self, count: int) -> Sequence[int]:
        """Return the next `count` ids, of which there must be as many."""
        self.left -= count
        taken: Sequence[int] = ()
        while len(taken) < count:
            ids = self._ranges.popleft()
            missing = count - len(taken)
            if missing < len(ids):
                self._ranges.appendleft(ids[missing:])
            taken = [*taken, *ids[:missing]] if taken else ids[:missing]
        return taken


def _may_be_accepted(flight: Flight, event: End | Fail) -> bool:
    """Return whether the server may have accepted the request: it was sent, and no response says that it was refused."""
    if not isinstance(event, Fail):
        return True
    return bool(flight.sent) and (event.code in _OUTCOME_UNKNOWN or not event.code.startswith(_REFUSED))
