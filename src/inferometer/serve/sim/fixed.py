"""The simplest timing model: fixed TTFT and ITL for each request.

Token k is due at base + k x itl, where base = (time of admission) + ttft: relative to the start and not to the previous
token, so lateness does not accumulate. With N tokens per chunk, a chunk is due with its first token. A request is
admitted when it arrives or, at the limit, when an earlier one's last token was due (not when it was written).

With random service times, all times of a request are multiplied by one random factor with a mean of 1: exponential, or
lognormal with a coefficient of variation of 1. So the capacity stays max_batch / mean time per request.
"""

import math
from collections import deque
from heapq import heappop, heappush, heapreplace
from statistics import NormalDist

from inferometer.serve.sim.jobs import NEVER, Job, noise
from inferometer.serve.sim.settings import Fixed
from inferometer.units import NS


class FixedTiming:
    """Fixed TTFT and ITL as a timing model."""

    def __init__(self, spec: Fixed, *, seed: int = 0, tokens_per_chunk: int = 1, max_queue: int | None = None) -> None:
        self.due, self.n_running = NEVER, 0
        self._ttft, self._itl = round(spec.ttft * NS), round(spec.itl * NS)
        self._jitter, self._service = spec.jitter, spec.service
        self._seed, self._per_chunk = seed, tokens_per_chunk
        self._max_batch = spec.max_batch or NEVER
        self._max_queue = NEVER if max_queue is None else max_queue
        self._waiting: deque[Job] = deque()
        self._heap: list[tuple[int, int, Job]] = []

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def add(self, job: Job, at: int) -> bool:
        if self.n_running < self._max_batch:
            self._let_in(job, at)
        elif len(self._waiting) < self._max_queue:
            self._waiting.append(job)
        else:
            return False
        return True

    def drop(self, job: Job, at: int) -> None:
        job.gone = True
        if job.started < 0:
            self._waiting.remove(job)
        elif job.made < job.n_out:
            self._leave(at)  # its entry in the heap is removed when it is due

    def advance(self, now: int) -> None:
        heap, per_chunk, plain = self._heap, self._per_chunk, not self._jitter
        while heap and heap[0][0] <= now:
            due, n, job = heap[0]
            if job.gone:
                heappop(heap)
                continue
            made = job.made + per_chunk
            if made < job.n_out:
                job.made = made
                following = job.base + made * job.itl
                heapreplace(heap, (following if plain else self._jittered(job, following, due), n, job))
                job.emit(per_chunk, due)
            else:
                count, job.made = job.n_out - job.made, job.n_out
                heappop(heap)
                self._leave(due)
                job.emit(count, due)
        self.due = heap[0][0] if heap else NEVER

    def pause(self, ns: int) -> None:
        """Keep the due times: what was due meanwhile is late, the rest is on time."""

    def _let_in(self, job: Job, at: int) -> None:
        factor = self._factor(job)
        ttft = round(self._ttft * factor)
        job.started = at
        job.base = at + ttft
        job.itl = round(self._itl * factor)
        if self._jitter:
            job.base += round(ttft * self._jitter * noise(self._seed, job.n, 0))
        self.n_running += 1
        heappush(self._heap, (job.base, job.n, job))
        self.due = self._heap[0][0]

    def _leave(self, at: int) -> None:
        self.n_running -= 1
        if self._waiting:
            self._let_in(self._waiting.popleft(), at)

    def _jittered(self, job: Job, nominal: int, previous: int) -> int:
        return max(previous, nominal + round(job.itl * self._jitter * noise(self._seed, job.n, job.made)))

    def _factor(self, job: Job) -> float:
        """By how much the request's times differ from the mean."""
        if self._service == "constant":
            return 1.0
        uniform = min(max((noise(self._seed, job.n, -1) + 1) / 2, 2.0**-53), 1 - 2.0**-53)
        if self._service == "exponential":
            return -math.log1p(-uniform)
        return math.exp(math.sqrt(math.log(2)) * _NORMAL.inv_cdf(uniform) - math.log(2) / 2)


_NORMAL = NormalDist()
