"""A model's queue: first come, first served, in batches if the model supports them.

It uses neither threads nor tensors: it only decides which requests go together and when. A batch consists of
consecutive requests with equal keys. It starts as soon as a slot is free and
  - it has one of the preferred sizes, or cannot grow (the next request does not fit), or
  - its oldest request has waited for the delay; without a delay, the queued requests start at once.
A request whose deadline passes while it is queued is dropped.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from inferometer.serve.models.types import NEVER, Inference

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


class Queue:
    """The queued requests of a model; calls `start` with each batch and `expired` with requests that were dropped."""

    def __init__(
        self,
        policy: Policy,
        call_at: Callable[[int, Callable[[], None]], None],
        now: Callable[[], int],
        start: Callable[[list[Inference]], None],
        expired: Callable[[Inference], None],
        slots: int = 0,
    ) -> None:
        self.policy = policy
        self.free = slots
        """Batches that may start now."""
        self.waiting: OrderedDict[Inference, list[Any]] = OrderedDict()
        """Queued requests, with their entries in the heap."""
        self._call_at, self._now, self._start, self._expired = call_at, now, start, expired
        self._deadlines: list[list[Any]] = []
        """A heap of [deadline, number, request]. The request of those that have left is None: no tensors are kept."""
        self._armed, self._number, self._is_dispatching = NEVER, 0, False

    @property
    def is_full(self) -> bool:
        return 0 < self.policy.limit <= len(self.waiting)

    def put(self, inference: Inference) -> None:
        if self.free and not self.waiting and not self.policy.batching:  # fast path
            self.free -= 1
            self._start([inference])
            return
        self._number += 1
        self.waiting[inference] = entry = [inference.deadline, self._number, inference]
        self.dispatch()
        if inference.deadline < NEVER and entry[2] is not None:
            heappush(self._deadlines, entry)
            self._wake_at(inference.deadline)

    def remove(self, inference: Inference) -> None:
        """Remove a request; those behind it may start now."""
        if inference in self.waiting:
            self._leave(inference)
            if self.policy.batching:
                self.dispatch()

    def release(self) -> None:
        """Note that a slot is free again."""
        self.free += 1
        if self.waiting:
            self.dispatch()

    def dispatch(self) -> None:
        if self._is_dispatching:  # called from a batch that ended at once: the loop below continues
            return
        self._is_dispatching = True
        try:
            while self.free and self.waiting and (batch := self._gather()) is not None:
                if batch:
                    self.free -= 1
                    self._start(batch)
        finally:
            self._is_dispatching = False

    # --- batches ---

    def _gather(self) -> list[Inference] | None:
        """Return the batch that starts now; None if it should wait, an empty one if requests were dropped instead."""
        t = self._now()
        batch, preferred, is_closed = self._compatible()
        late = [one for one in batch if one.deadline <= t]
        for one in late:
            self._drop(one)
        if late:
            return []
        if preferred:
            del batch[preferred:]
        elif not is_closed and (due := batch[0].queued + self.policy.delay_ns) > t:
            self._wake_at(due)
            return None
        for one in batch:
            self._leave(one)
        return batch

    def _compatible(self) -> tuple[list[Inference], int, bool]:
        """Return the requests at the head that may go together, how many of them make the largest preferred size (0: none
        do), and whether the batch cannot grow further."""
        policy, batch, rows, preferred = self.policy, list[Inference](), 0, 0
        for one in self.waiting:
            if not policy.batching:
                return [one], 0, True
            if batch and (one.key != batch[0].key or rows + one.rows > policy.max_rows):
                return batch, preferred, True
            batch.append(one)
            rows += one.rows
            if rows in policy.preferred:
                preferred = len(batch)
        return batch, preferred, rows >= policy.max_rows

    # --- deadlines ---

    def _wake_at(self, instant: int) -> None:
        if instant < self._armed:
            self._armed = instant
            self._call_at(instant, self._woken)

    def _woken(self) -> None:
        t = self._now()
        if self._armed <= t:
            self._armed = NEVER
        while self._deadlines and self._deadlines[0][0] <= t:
            if (late := heappop(self._deadlines)[2]) is not None:
                self._drop(late)
        self.dispatch()
        if self._deadlines:
            self._wake_at(self._deadlines[0][0])

    def _drop(self, inference: Inference) -> None:
        if inference in self.waiting:  # the end of another may have ended this one, too
            self._leave(inference)
            self._expired(inference)

    def _leave(self, inference: Inference) -> None:
        self.waiting.pop(inference)[2] = None
        if len(self._deadlines) > 64 + 2 * len(self.waiting):  # most of them belong to requests that are gone
            self._deadlines = [entry for entry in self._deadlines if entry[2] is not None]
            heapify(self._deadlines)
