"""A model's queue: first come, first served, in batches if the model supports them.

It uses neither threads nor tensors: it only decides which requests go together and when. A batch consists of
consecutive requests with equal keys. It starts as soon as a slot is free and
  - it has one of the preferred sizes, or cannot grow (the next request does not fit), or
  - its oldest request has waited for the delay; without a delay, the queued requests start at once.
A request whose deadline passes while it is queued is dropped.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import msgspec

from inferometer.serve.models.types import NEVER, Inference
from inferometer.timing.deadlines import Deadlines, Entry

UNLIMITED = 1 << 40


class Policy(msgspec.Struct, frozen=True):
    """How requests are queued and batched."""

    max_rows: int = 1
    """Maximum rows of a batch; without batching, each request goes alone, whatever its rows."""
    batching: bool = False
    preferred: frozenset[int] = frozenset()
    delay_ns: int = 0
    limit: int = 0
    """Maximum queued requests; 0: no limit."""
    timeout_ns: int = 0
    """How long requests may be queued unless they set their own timeout; 0: no limit."""


class Queue:
    """The queued requests of a model; calls `start` with each batch and `expired` with requests that were dropped."""

    def __init__(
        self,
        policy: Policy,
        deadlines: Deadlines,
        now: Callable[[], int],
        start: Callable[[list[Inference]], None],
        expired: Callable[[Inference], None],
        slots: int,
    ) -> None:
        self.policy = policy
        self.free = slots
        """Batches that may start now."""
        self.waiting: OrderedDict[Inference, Entry | None] = OrderedDict()
        """Queued requests, with the entries of their deadlines."""
        self._deadlines, self._now, self._start, self._expired = deadlines, now, start, expired
        self._wakes_at, self._is_dispatching = NEVER, False

    @property
    def is_full(self) -> bool:
        return 0 < self.policy.limit <= len(self.waiting)

    def put(self, inference: Inference) -> None:
        if self.free and not self.waiting and not self.policy.batching:  # fast path
            self.free -= 1
            self._start([inference])
            return
        self.waiting[inference] = None
        self.dispatch()
        if inference.deadline < NEVER and inference in self.waiting:
            self.waiting[inference] = self._deadlines.at(inference.deadline, partial(self._drop, inference))

    def remove(self, inference: Inference) -> None:
        """Remove a request if it is queued; those behind it may start with the next `dispatch`."""
        if inference in self.waiting and (entry := self.waiting.pop(inference)) is not None:
            self._deadlines.cancel(entry)

    def release(self) -> None:
        """Note that a slot is free again."""
        self.free += 1
        self.dispatch()

    def dispatch(self) -> None:
        """Start all batches that can start."""
        if self._is_dispatching:  # called from a batch that ended at once: the loop below continues
            return
        self._is_dispatching = True
        try:
            while self.free and self.waiting:
                t, (batch, is_complete) = self._now(), self._compatible()
                due = batch[0].queued + self.policy.delay_ns
                if late := [one for one in batch if one.deadline <= t]:  # their deadlines are due, too
                    for one in late:
                        self._drop(one)
                elif is_complete or due <= t:
                    for one in batch:
                        self.remove(one)
                    self.free -= 1
                    self._start(batch)
                else:
                    if due < self._wakes_at:
                        self._wakes_at = due
                        self._deadlines.at(due, self._woken)
                    break
        finally:
            self._is_dispatching = False

    def _compatible(self) -> tuple[list[Inference], bool]:
        """Return the requests at the head that may go together, up to the largest preferred size, and whether there is
        no reason to wait for more."""
        policy, batch, rows, preferred = self.policy, list[Inference](), 0, 0
        for one in self.waiting:
            if not policy.batching:
                return [one], True
            if batch and (one.key != batch[0].key or rows + one.rows > policy.max_rows):
                return batch[: preferred or None], True
            batch.append(one)
            rows += one.rows
            if rows in policy.preferred:
                preferred = len(batch)
        return batch[: preferred or None], bool(preferred) or rows >= policy.max_rows

    def _woken(self) -> None:
        self._wakes_at = NEVER
        self.dispatch()

    def _drop(self, inference: Inference) -> None:
        if inference in self.waiting:  # the end of another may have ended this one, too
            self.remove(inference)
            self._expired(inference)
            self.dispatch()
