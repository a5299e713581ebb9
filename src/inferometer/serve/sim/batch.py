"""A step-synchronous batch engine, as in LLM servers: all running sequences advance together, one step at a time.

A step starts when the previous one was due to end, or when a request arrives at an idle engine. It is planned at its
start:

1. Every decoding sequence gets room for its next tokens, oldest first. If there is none, the latest sequence is
   preempted: it gives up its room, returns to the head of the queue, and its prompt and generated tokens are prefilled
   again later.
2. Prefills in progress continue; then, unless something was preempted, queued requests are admitted in order of arrival
   while the batch, the KV room and the step's token budget last. Decoding uses the budget first. Without chunked prefill
   there is no budget: whole prompts are prefilled at once, and decoding sequences wait for the end of the long step.

The duration of a step is described in settings.Batch. At its end, each sequence that decoded or completed its prefill
gets its tokens: one, or a chunk's worth, as with speculative decoding. Room: a sequence that has generated m tokens for
a prompt of p tokens holds p + m tokens while it generates the next.
"""

from collections import deque

from inferometer.serve.sim.jobs import NEVER, Job, noise
from inferometer.serve.sim.kv import Holding, KvCache
from inferometer.serve.sim.settings import Batch
from inferometer.units import NS


class BatchTiming:
    """The batch engine as a timing model."""

    def __init__(self, spec: Batch, *, seed: int = 0, tokens_per_chunk: int = 1, max_queue: int | None = None) -> None:
        self.due = NEVER
        self.kv = KvCache(spec.kv_tokens, spec.block, spec.prefix_cache)
        self.preemptions = self.steps = 0
        self._spec, self._seed, self._per_step = spec, seed, tokens_per_chunk
        self._max_queue = NEVER if max_queue is None else max_queue
        self._budget = spec.token_budget if spec.chunked_prefill else NEVER
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._step: list[tuple[Job, int]] = []  # tokens that each prefills in this step; 0: it decodes

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def add(self, job: Job, at: int) -> bool:
        free = self._spec.max_batch - len(self._running)
        if len(self._waiting) >= free + self._max_queue:
            return False
        job.left = job.n_in
        self._waiting.append(job)
        if self.due == NEVER:
            self._begin(at)
        return True

    def drop(self, job: Job, at: int) -> None:
        job.gone = True
        if job.holding is not None:
            self._leave(job)
        elif job.made < job.n_out:
            self._waiting.remove(job)

    def advance(self, now: int) -> None:
        while self.due <= now:
            end = self.due
            self._end(end)
            self._begin(end)

    def pause(self, ns: int) -> None:
        """Extend the current step by that much."""
        if self.due != NEVER:
            self.due += ns

    # --- a step ------------------------------------------------------------------------------------------------------

    def _begin(self, start: int) -> None:
        self._step = step = self._plan(start)
        if not step:
            self.due = NEVER
            return
        self.steps += 1
        prefilled = sum(tokens for _, tokens in step)
        self.due = start + self._duration(prefilled, sum(not tokens for _, tokens in step))

    def _duration(self, prefilled: int, decoding: int) -> int:
        spec, seconds = self._spec, 0.0
        if prefilled:
            seconds += spec.prefill_overhead + prefilled / spec.prefill_rate
        if decoding:
            seconds += spec.decode_step + decoding * spec.decode_per_seq
        if spec.jitter:
            seconds *= 1 + spec.jitter * noise(self._seed, 0, self.steps)
        return max(round(seconds * NS), 1)

    def _plan(self, start: int) -> list[tuple[Job, int]]:
        before = self.preemptions
        step = [(job, 0) for job in list(self._running) if not job.left and self._make_room(job)]
        budget = self._budget - len(step) * self._per_step
        for job in self._running:
            if job.left and budget > 0:
                step.append((job, min(job.left, budget)))
                budget -= step[-1][1]
        if self.preemptions == before:
            while budget > 0 and self._waiting and len(self._running) < self._spec.max_batch and self._let_in(start):
                job = self._running[-1]
                step.append((job, min(job.left, budget)))
                budget -= step[-1][1]
        return step

    def _make_room(self, job: Job) -> bool:
        """Make room for the next tokens of a decoding sequence; return False if it was itself preempted."""
        while job.holding is not None:
            if self.kv.grow(_holding(job), job.n_in + job.made):
                return True
            self._preempt(self._running[-1])
        return False

    def _preempt(self, job: Job) -> None:
        self.preemptions += 1
        self._leave(job)
        job.left = job.n_in + job.made
        self._waiting.appendleft(job)

    def _let_in(self, start: int) -> bool:
        job = self._waiting[0]
        holding = self.kv.admit(job.keys, job.n_in + job.made)
        if holding is None:
            return False
        self._waiting.popleft()
        self._running.append(job)
        job.holding = holding
        job.left = job.n_in + job.made - holding.cached
        if job.started < 0:
            job.started = start
            job.cached = holding.cached
        return True

    def _end(self, end: int) -> None:
        for job, prefilled in self._step:
            if job.gone:
                continue
            if prefilled:
                job.left -= prefilled
                self.kv.publish(_holding(job), job.keys, job.n_in + job.made - job.left)
                if job.left:
                    continue
            count = min(self._per_step, job.n_out - job.made)
            job.made += count
            if job.made == job.n_out:
                self._leave(job)
            job.emit(count, end)

    def _leave(self, job: Job) -> None:
        self._running.remove(job)
        self.kv.release(_holding(job))
        job.holding = None


def _holding(job: Job) -> Holding:
    assert isinstance(job.holding, Holding)
    return job.holding
