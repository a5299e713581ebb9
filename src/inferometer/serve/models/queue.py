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
from typing import Any, Protocol

import msgspec

from inferometer.serve.models.types import NEVER, Inference

UNLIMITED = 1 << 40


class QueueClock(Protocol):
    """Calls the queue back at a deadline."""

    def at(self, deadline: int, call: Callable[[], None]) -> None: ...


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
        clock: QueueClock,
        now: Callable[[], int],
        start: Callable[[list[Inference]], None],
        expired: Callable[[Inference], None],
        slots: int = 0,
        owner: Any = None,
    ) -> None:
        self.policy = policy
        self.owner = owner
        """The model, for callers that only have the request."""
        self.free = slots
        """Batches that may start now."""
        self.waiting: OrderedDict[Inference, int] = OrderedDict()
        """Queued requests, with the number of their deadline; 0: no deadline."""
        self._clock, self._now, self._start, self._expired = clock, now, start, expired
        self._armed = NEVER
        self._is_dispatching = False
        self._deadlines: list[tuple[int, int]] = []
        """A heap of deadlines and numbers. Some are of requests that are gone: it does not reference requests, and so
        no tensors."""
        self._by_number: dict[int, Inference] = {}
        self._number = 0

    @property
    def is_full(self) -> bool:
        return 0 < self.policy.limit <= len(self.waiting)

    def put(self, inference: Inference) -> None:
        if self.free and not self.waiting and not self.policy.batching:  # fast path
            self.free -= 1
            self._start([inference])
            return
        inference.place = self
        self.waiting[inference] = 0
        self.dispatch()
        if inference.deadline < NEVER and inference in self.waiting:
            self._number += 1
            self.waiting[inference] = self._number
            self._by_number[self._number] = inference
            heappush(self._deadlines, (inference.deadline, self._number))
            self._wake_at(inference.deadline)

    def remove(self, inference: Inference) -> None:
        """Remove a request; those behind it may start now."""
        if inference not in self.waiting:
            return
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
            while self.free and self.waiting:
                batch = self._gather()
                if batch is None:
                    break
                if batch:
                    self.free -= 1
                    self._start(batch)
        finally:
            self._is_dispatching = False

    # --- batches ---

    def _gather(self) -> list[Inference] | None:
        """Return the batch that starts now; None if it should wait, an empty one if requests were dropped instead."""
        t, policy = self._now(), self.policy
        batch, is_closed = self._compatible()
        late = [one for one in batch if one.deadline <= t]
        for one in late:
            self._drop(one)
        if late:
            return []
        if preferred := self._preferred(batch):
            batch = batch[:preferred]
        elif not is_closed and (due := batch[0].queued + policy.delay_ns) > t:
            self._wake_at(due)
            return None
        for one in batch:
            self._leave(one)
        return batch

    def _compatible(self) -> tuple[list[Inference], bool]:
        """Return the requests at the head that may go together, and whether the batch cannot grow further."""
        batch: list[Inference] = []
        rows = 0
        for one in self.waiting:
            if not self.policy.batching:
                return [one], True
            if batch and (one.key != batch[0].key or rows + one.rows > self.policy.max_rows):
                return batch, True
            batch.append(one)
            rows += one.rows
        return batch, rows >= self.policy.max_rows

    def _preferred(self, batch: list[Inference]) -> int:
        """Return how many of them make the largest preferred size; 0: none do."""
        found = rows = 0
        if self.policy.preferred:
            for i, one in enumerate(batch, 1):
                rows += one.rows
                if rows in self.policy.preferred:
                    found = i
        return found

    # --- deadlines ---

    def _wake_at(self, instant: int) -> None:
        if instant < self._armed:
            self._armed = instant
            self._clock.at(instant, self._woken)

    def _woken(self) -> None:
        t = self._now()
        if self._armed <= t:
            self._armed = NEVER
        while self._deadlines and self._deadlines[0][0] <= t:
            late = self._by_number.get(heappop(self._deadlines)[1])
            if late is not None:
                self._drop(late)
        self.dispatch()
        if self._deadlines:
            self._wake_at(self._deadlines[0][0])

    def _drop(self, inference: Inference) -> None:
        if inference in self.waiting:  # the end of another may have ended this one, too
            self._leave(inference)
            self._expired(inference)

    def _leave(self, inference: Inference) -> None:
        self._by_number.pop(self.waiting.pop(inference), None)
        if len(self._deadlines) > 64 + 2 * len(self.waiting):  # most of them belong to requests that are gone
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._by_number]
            heapify(self._deadlines)
