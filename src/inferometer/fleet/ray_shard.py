"""The parent's handle on a shard that runs in a Ray actor (control.ShardHandle)."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from inferometer.engine.job import Job
from inferometer.fleet.control import INSTANTS, Outcome
from inferometer.fleet.copying import FolderCopy, Numbers
from inferometer.fleet.ray_actor import NodeFacts, Update
from inferometer.store.spool import STATES
from inferometer.timing.clock import now
from inferometer.types import ClosedStage
from inferometer.units import NS

_POLL_S, _DEALING_POLL_S, _POLL_PER_SHARD_S = 0.15, 0.03, 0.0015
"""How long an actor waits before it responds to a poll, unless its shard ends: usually; if the parent deals out requests (dealing.py),
which needs the latest numbers; and with many shards, at least, for each of them. A poll takes about a millisecond of CPU time."""
_SILENT_S = 10.0
"""An actor that has not responded for this long is lost."""
_UNREACHABLE_S = 3.0
"""The same if its connection was closed or is refused: Ray takes up to a minute to call such a node dead."""
_PIECE, _RESPONSE, _RESPONSES = 1 << 20, 8 << 20, 128 << 20
"""Bytes that are read at a time, that a response may have, and that all responses in flight together may have."""


class RayShard:
    """One shard. A thread of the fleet polls it (`poll`, `take`, `end`), and the supervisor does the rest."""

    def __init__(self, job: Job, actor: Any, facts: NodeFacts, offset: Callable[[], int]) -> None:
        """`offset`: how far the node's monotonic clock is ahead, ns."""
        self.number, self.actor, self.facts, self._offset = job.shard, actor, facts, offset
        self._copy = FolderCopy(job.spool, job.shard)
        is_dealt = any(isinstance(stage, ClosedStage) and stage.requests for stage in job.plan.stages)
        self._poll_s = _DEALING_POLL_S if is_dealt else _POLL_S
        self._poll = actor.poll.options(concurrency_group="poll")
        self._tell = actor.tell.options(concurrency_group="control")
        self.calls: deque[Any] = deque()
        """Messages to the actor that may not have arrived yet, oldest first."""
        self._heard = now()
        self._unreachable = 0  # since when the actor cannot be reached; 0: it can
        self._has_more = False
        self.has_ended = False
        """Its process has ended, or it is lost."""
        self._polls = 0  # how many responses were taken: one that did not arrive is requested again
        self._state = 0
        self._result: Outcome = "ended without a result"
        self._ended = threading.Event()
        self.is_lost = False

    def begin(self, data: bytes) -> None:
        """Start the shard's process. `data` has the job with its secrets, and the credentials of the bucket: it is an argument of a
        call, which Ray does not show or store."""
        self.calls.append(self.actor.begin.options(concurrency_group="control").remote(data, _PIECE))

    # --- for the thread that polls -----------------------------------------------------------------------------------

    @property
    def is_polled(self) -> bool:
        return not self._ended.is_set()

    @property
    def is_ready(self) -> bool:
        return self._state >= STATES.index("ready")

    def poll(self, shards: int, may_store: bool) -> Any:
        """Request what is new. `may_store`: all shards have ended, and this one may store its chunks and texts."""
        wait = 0.0 if self._has_more else max(self._poll_s, shards * _POLL_PER_SHARD_S)
        return self._poll.remote(self._polls, wait, min(_RESPONSE, _RESPONSES // shards), may_store)

    def take(self, update: Update, is_synchronized: bool) -> None:
        """Store what a poll has brought."""
        self._heard, self._has_more = now(), update.has_more
        self.has_ended = update.has_ended
        self._polls += 1
        self._unreachable = 0
        self._copy.beat(update.heartbeat)
        for change in update.changes:
            if isinstance(change, Numbers):
                self._copy.put_numbers(change)
                self._state = self._copy.control["state"]
                if not is_synchronized:
                    self._copy.control.state = "starting"
            else:
                self._copy.put(change)

    def note_unreachable(self) -> None:
        """Take note that the connection to the actor failed. Ray tries again; for how long, is decided here."""
        self._unreachable = self._unreachable or now()
        if now() - self._unreachable > _UNREACHABLE_S * NS:
            self.die(f"was lost: its Ray node {self.facts.address} cannot be reached any more")

    def show_state(self) -> None:
        self._copy.control["state"] = self._state

    def end(self, outcome: Outcome) -> None:
        self._result = outcome
        self.has_ended = True
        self._ended.set()

    def die(self, how: str) -> None:
        """End it, unless it has already ended."""
        if not self._ended.is_set():
            self.is_lost = True
            self.end(how)

    # --- for the supervisor ------------------------------------------------------------------------------------------

    def tell(self, **numbers: int) -> None:
        there = {name: value + self._offset() * (name in INSTANTS) for name, value in numbers.items()}
        self.calls.append(self._tell.remote(there))

    def is_alive(self) -> bool:
        if not self._ended.is_set() and now() - self._heard > _SILENT_S * NS:
            self.die(f"was given up: its Ray node {self.facts.address} did not respond for {_SILENT_S:.0f} s")
        return not self._ended.is_set()

    def silence(self) -> int:
        return self._copy.silence()

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def kill(self) -> None:
        self.die("was ended")
        self.actor.close.remote()

    def result(self) -> Outcome:
        return self._result
