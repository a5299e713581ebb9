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

from collections.abc import Iterator, Sequence
from itertools import chain, takewhile

import msgspec

from inferometer.serve.sim.faults import noise
from inferometer.serve.sim.settings import Batch, Sim
from inferometer.serve.sim.timing import NEVER, Job, Timing
from inferometer.units import NS


class BatchTiming(Timing):
    """The batch engine as a timing model."""

    def __init__(self, spec: Batch, settings: Sim) -> None:
        super().__init__(spec.max_batch, settings)
        self.kv = KvCache(spec.kv_tokens, spec.block)
        self.steps, self._spec = 0, spec
        self._running: list[Job] = []
        self._ended = 0  # when the last step ended
        self._step: list[tuple[Job, int]] = []  # tokens that each prefills in this step; 0: it decodes

    def advance(self, now: int) -> None:
        while self.due <= now:
            end = self._ended = self.due
            for job, prefilled in self._step:
                if job.gone:
                    continue
                if prefilled:
                    job.left -= prefilled
                    self.kv.publish(job.holding, job.keys, job.n_in + job.made - job.left)
                    if job.left:
                        continue
                count = min(self._per_chunk, job.n_out - job.made)
                job.made += count
                if job.made == job.n_out:
                    self._leave(job)
                job.emit(count, end)
            self._begin(end)

    def _admit(self, at: int) -> None:
        if self.due == NEVER:
            self._begin(max(at, self._ended))  # a request with a long prompt is added some time after it arrived

    def _begin(self, start: int) -> None:
        """Plan a step, as described above, and set when it ends."""
        before = self.preemptions
        step = [(job, 0) for job in list(self._running) if not job.left and self._make_room(job)]
        budget = (self._spec.token_budget if self._spec.chunked_prefill else NEVER) - len(step) * self._per_chunk
        admitted = self._admitted(start) if self.preemptions == before else ()
        prefills = chain([job for job in self._running if job.left], admitted)
        while budget > 0 and (job := next(prefills, None)):
            step.append((job, min(job.left, budget)))
            budget -= job.left
        self._step = step
        if not step:
            self.due = NEVER
            return
        self.steps += 1
        prefilled, decoding = sum(tokens for _, tokens in step), sum(not tokens for _, tokens in step)
        spec, seconds = self._spec, 0.0
        if prefilled:
            seconds += spec.prefill_overhead + prefilled / spec.prefill_rate
        if decoding:
            seconds += spec.decode_step + decoding * spec.decode_per_seq
        if spec.jitter:
            seconds *= 1 + spec.jitter * noise(self._seed, 0, self.steps)
        self.due = start + max(round(seconds * NS), 1)

    def _make_room(self, job: Job) -> bool:
        """Make room for the next tokens of a decoding sequence; return False if it was itself preempted."""
        while job.is_running:
            if self.kv.grow(job.holding, job.n_in + job.made):
                return True
            latest = self._running[-1]
            self.preemptions += 1
            self._leave(latest)
            self.waiting.appendleft(latest)
        return False

    def _admitted(self, start: int) -> Iterator[Job]:
        """Admit queued requests one after another while there is room."""
        while self.waiting and self.n_running < self._max_batch:
            job = self.waiting[0]
            job.holding = self.kv.admit(job.keys, job.n_in + job.made)
            if job.holding is None:
                return
            self.waiting.popleft()
            self._running.append(job)
            self.n_running += 1
            if self._spec.prefix_cache:
                self.kv.queried += job.n_in + job.made
            job.is_running = True
            job.left = job.n_in + job.made - job.holding.cached
            if job.started < 0:
                job.started, job.cached = start, job.holding.cached
            yield job

    def _leave(self, job: Job) -> None:
        super()._leave(job)
        self._running.remove(job)
        self.kv.release(job.holding)


def block_keys(ids: Sequence[int], block: int) -> tuple[int, ...]:
    """Return a key for each full block of a prompt."""
    keys, key = [], 0
    for start in range(0, len(ids) - block + 1, block):
        key = hash((key, tuple(ids[start : start + block])))
        keys.append(key)
    return tuple(keys)


class Holding(msgspec.Struct, eq=False):
    """The blocks of one sequence."""

    keyed: list[int]
    private: int
    cached: int  # tokens that were already in the cache


class KvCache:
    """Room for keys and values in blocks of tokens, with a prefix cache. Pure bookkeeping.

    A sequence holds private blocks, and keyed blocks shared with every sequence that has the same prompt up to there. A
    block's key identifies its contents and everything before it. Keyed blocks that no sequence holds stay cached until
    the room is needed; the least recently used go first, and of one sequence the last ones first, since they are
    useless without the earlier ones.

        held + idle <= capacity        held: private blocks, and keyed blocks counted once
    """

    def __init__(self, tokens: int, block: int) -> None:
        self.block, self.capacity, self.held = block, tokens // block, 0
        self.queried = self.hit = 0  # prompt tokens looked up in the prefix cache, and those that were found
        self.idle: dict[int, None] = {}  # keyed blocks that no sequence holds, least recently used first
        self._holders: dict[int, int] = {}  # of each keyed block

    def admit(self, keys: Sequence[int], tokens: int) -> Holding | None:
        """Return room for `tokens`, the first of which may be cached, or None if there is not enough room."""
        # Never the whole prompt, since its last token must be computed.
        keyed = list(takewhile(self._holders.__contains__, keys[: (tokens - 1) // self.block]))
        fresh = self._blocks(tokens) - len(keyed)
        woken = sum(key in self.idle for key in keyed)
        if self.held + woken + fresh > self.capacity:
            return None
        for key in keyed:
            self._holders[key] += 1
            self.idle.pop(key, None)
        cached = len(keyed) * self.block
        self.hit += cached
        self._take(woken + fresh)
        return Holding(keyed, fresh, cached)

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Make sure that the sequence has room for `tokens` in total; return False if there is not enough."""
        fresh = self._blocks(tokens) - len(holding.keyed) - holding.private
        if fresh > 0:
            if self.held + fresh > self.capacity:
                return False
            self._take(fresh)
            holding.private += fresh
        return True

    def publish(self, holding: Holding, keys: Sequence[int], computed: int) -> None:
        """Note that the first `computed` tokens are computed: others may share their full blocks from now on."""
        for key in keys[len(holding.keyed) : computed // self.block]:
            if key not in self._holders:  # else another sequence was first; ours stays private
                self._holders[key] = 1
                holding.keyed.append(key)
                holding.private -= 1

    def release(self, holding: Holding) -> None:
        self.held -= holding.private
        for key in reversed(holding.keyed):
            self._holders[key] -= 1
            if not self._holders[key]:
                self.idle[key] = None
                self.held -= 1

    def _take(self, blocks: int) -> None:
        """Hold more blocks, for which the least recently used idle ones are evicted if necessary."""
        self.held += blocks
        while self.held + len(self.idle) > self.capacity:
            key = next(iter(self.idle))
            del self.idle[key], self._holders[key]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block)
