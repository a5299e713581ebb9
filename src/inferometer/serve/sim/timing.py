"""When tokens are generated: the interface of timing models, the simplest one, and the timer that drives them.

A timing model is pure: no IO and no clock of its own. Times are passed in (`add`, `drop`, `advance`), and it emits
tokens through `Job.emit` with the time at which they were due. `emit` must not call back into the model.
"""

import asyncio
import math
from abc import abstractmethod
from collections import deque
from heapq import heappop, heappush, heapreplace
from statistics import NormalDist
from typing import Any

from inferometer.serve.sim.faults import noise
from inferometer.serve.sim.settings import Fixed, Sim
from inferometer.timing.clock import now
from inferometer.timing.timer import deadline_timer
from inferometer.units import NS

NEVER = 1 << 62
_TURN_NS = 2_000_000
_SLICE_NS = 100_000
"""Tokens due within this time are produced before the clock is read again."""


class Job:
    """One request. Subclasses override `emit` to receive its tokens."""

    def __init__(self, n: int, n_in: int, n_out: int, arrived: int, keys: tuple[int, ...] = ()) -> None:
        """`n` is the request's ordinal, from 1; `keys` those of the prompt's full KV blocks (batch.block_keys)."""
        self.n, self.n_in, self.n_out, self.arrived, self.keys = n, n_in, n_out, arrived, keys
        self.made = 0  # tokens generated so far
        self.cached = 0  # prompt tokens found in the prefix cache
        self.started = -1  # when it was first admitted; -1 while it is queued
        self.is_running = self.gone = False
        self.base = self.itl = 0  # fixed: when its first token is due, and ns between its tokens
        self.left = 0  # batch: tokens still to be prefilled
        self.holding: Any = None  # batch: its KV blocks

    def emit(self, count: int, due: int) -> None:
        """Called when `count` more tokens are generated, which were due at `due`."""


class Timing:
    """A timing model."""

    def __init__(self, max_batch: int, settings: Sim) -> None:
        self.due = NEVER  # the next time at which it has something to do
        self.n_running = self.preemptions = 0
        self.kv: Any = None  # the KV cache, if the model has one
        self.waiting: deque[Job] = deque()
        self._seed, self._per_chunk, self._max_batch = settings.seed, settings.tokens_per_chunk, max_batch
        self._max_queue = NEVER if settings.max_queue is None else settings.max_queue

    def add(self, job: Job, at: int) -> bool:
        """Accept a request that arrived; return False if the queue is full."""
        if len(self.waiting) >= self._max_batch - self.n_running + self._max_queue:
            return False
        self.waiting.append(job)
        self._admit(at)
        return True

    def drop(self, job: Job, at: int) -> None:
        """Forget a request in progress whose client disconnected."""
        job.gone = True
        if job.is_running:
            self._leave(job)
            self._admit(at)
        else:
            self.waiting.remove(job)

    @abstractmethod
    def advance(self, now: int) -> None:
        """Do everything that was due until `now`, in order of due time."""

    @abstractmethod
    def _admit(self, at: int) -> None:
        """Start requests that are waiting, as far as possible."""

    def _leave(self, job: Job) -> None:
        """Take a running request out of the batch."""
        self.n_running -= 1
        job.is_running = False


class FixedTiming(Timing):
    """Fixed TTFT and ITL for each request.

    Token k is due at base + k x itl, where base = (time of admission) + ttft: relative to the start and not to the
    previous token, so lateness does not accumulate. With N tokens per chunk, a chunk is due with its first token. A
    request is admitted when it arrives or, at the limit, when an earlier one's last token was due.

    With random service times, all times of a request are multiplied by one random factor with a mean of 1: exponential,
    or lognormal with a coefficient of variation of 1. So the capacity stays max_batch / mean time per request.
    """

    def __init__(self, spec: Fixed, settings: Sim) -> None:
        super().__init__(spec.max_batch or NEVER, settings)
        self._spec = spec
        self._heap: list[tuple[int, int, Job]] = []

    def advance(self, now: int) -> None:
        heap, per_chunk, jitter = self._heap, self._per_chunk, self._spec.jitter
        while heap and heap[0][0] <= now:
            due, n, job = heap[0]
            if job.gone:
                heappop(heap)
                continue
            made = job.made + per_chunk
            if made < job.n_out:
                job.made = made
                following = job.base + made * job.itl
                if jitter:
                    following = max(due, following + round(job.itl * jitter * noise(self._seed, n, made)))
                heapreplace(heap, (following, n, job))
                job.emit(per_chunk, due)
            else:
                count, job.made = job.n_out - job.made, job.n_out
                heappop(heap)
                self._leave(job)
                self._admit(due)
                job.emit(count, due)
        self.due = heap[0][0] if heap else NEVER

    def _admit(self, at: int) -> None:
        while self.waiting and self.n_running < self._max_batch:
            job = self.waiting.popleft()
            scale = NS * self._factor(job)
            ttft = round(self._spec.ttft * scale)
            job.is_running, job.started, job.base, job.itl = True, at, at + ttft, round(self._spec.itl * scale)
            if self._spec.jitter:
                job.base += round(ttft * self._spec.jitter * noise(self._seed, job.n, 0))
            self.n_running += 1
            heappush(self._heap, (job.base, job.n, job))
            self.due = self._heap[0][0]

    def _factor(self, job: Job) -> float:
        """By how much the request's times differ from the mean."""
        if self._spec.service == "constant":
            return 1.0
        uniform = min(max((noise(self._seed, job.n, -1) + 1) / 2, 2.0**-53), 1 - 2.0**-53)
        if self._spec.service == "exponential":
            return -math.log1p(-uniform)
        return math.exp(math.sqrt(math.log(2)) * NormalDist().inv_cdf(uniform) - math.log(2) / 2)


class Clockwork:
    """Drives a timing model with a timer with absolute deadlines.

    A turn produces the tokens that are due, in order of their due times, and arms the timer for the next ones. If those
    are already past, it runs in the next iteration of the loop, so that sockets are read in between. A turn is short: if
    more is due than can be done, doing all of it would take longer each time and block everything else.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timing: Timing) -> None:
        self.timing, self._armed = timing, NEVER
        self.timer = deadline_timer(loop, self._fired)

    def changed(self, turn: int = 0) -> None:
        """Update after a change in the timing model: produce what is due now, in slices for at most `turn` ns, and arm
        the timer for what comes next."""
        timing, t = self.timing, now()
        while (due := timing.due) <= t:
            timing.advance(min(t, due + _SLICE_NS))
            if now() > t + turn:
                break
        if timing.due < self._armed:
            self._armed = timing.due
            self.timer.arm(self._armed)

    def _fired(self) -> None:
        self._armed = NEVER
        self.changed(_TURN_NS)
