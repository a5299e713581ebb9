"""A loaded version of a model: its queue, instances and statistics. Used in the event loop's thread only."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from inferometer.serve.models import checks, configs
from inferometer.serve.models.checks import named
from inferometer.serve.models.execution import Execution, Instance
from inferometer.serve.models.queue import UNLIMITED, Policy, Queue
from inferometer.serve.models.responses import Responses
from inferometer.serve.models.statistics import Reason, Statistics
from inferometer.serve.models.types import Code, Compute, Inference, Loaded, Output, Refused, Tensors, reason
from inferometer.serve.offload import LARGE
from inferometer.serve.threads import Threads
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.models.registry import Models

_REASONS: dict[Code, Reason] = {
    "CANCELLED": "CANCELED", "DEADLINE_EXCEEDED": "REJECTED", "RESOURCE_EXHAUSTED": "REJECTED", "INTERNAL": "BACKEND",
}  # fmt: skip
_EXPIRED = "Request timeout expired"
_THREADS = 64
"""Maximum threads of an instance without its own limit."""


class Model:
    """A loaded version of a model."""

    def __init__(
        self,
        models: "Models",
        name: str,
        version: str,
        config: Any,
        *,
        platform: str,
        loaded: Sequence[Loaded],
        labels: Mapping[str, tuple[str, ...]] = {},
    ) -> None:
        self.is_remote = loaded[0].forward is not None
        """Whether it runs in another process, which also queues, batches and counts its requests."""
        policy = Policy() if self.is_remote else configs.policy(config)
        self.name, self.version, self.config, self.platform = name, version, config, platform
        self.facts, self.labels = configs.facts(config), {**loaded[0].labels, **labels}
        self.versions = (version,)
        self.decoupled: bool = config.model_transaction_policy.decoupled
        self.text = loaded[0].text
        """What the OpenAI endpoints serve it with; None if it is not a text model."""
        self.counted = Statistics()
        self.responses = Responses(self.facts, self.labels, config.max_batch_size > 0, self.decoupled)
        self.offload = models.offload
        self._models, self._loop = models, models.loop
        self._timeout = 0 if self.is_remote else configs.timeout_ns(config)
        self._taken = checks.Taken(name, config.max_batch_size, self.facts, policy.batching)
        self._instant = None if policy.batching else loaded[0].instant
        slots = loaded[0].slots or (_THREADS if loaded[0].run is not None else UNLIMITED)
        threads = [Threads(models.loop, slots, f"{name} {i}") for i in range(len(loaded))]
        self._instances = [Instance(*pair) for pair in zip(loaded, threads, strict=True)]
        self._is_unlimited = slots == UNLIMITED
        self._idle = deque(self._instances * (1 if self._is_unlimited else slots))
        free = UNLIMITED if self._is_unlimited else len(self._idle)
        self._queue = Queue(policy, models.alarms.at, now, self._start, self._expired, free)
        self._running: set[Execution] = set()
        self._reading: set[Inference] = set()
        self._drained: asyncio.Future[None] | None = None

    @property
    def owner(self) -> "Model":
        """The model that cancels a request that is in this `place`."""
        return self

    @property
    def pending(self) -> int:
        """Number of queued requests."""
        return len(self._queue.waiting)

    def statistics(self) -> Any:
        return self.counted.message(self.name, self.version)

    # --- requests ---

    def submit(self, inference: Inference) -> None:
        is_whole = checks.check(inference, self._taken)
        if inference.wanted:
            inference.memory = self._models.regions.places(inference.wanted)
        if not is_whole:
            work = checks.work(inference)
            if work > LARGE:
                inference.place = self
                self._reading.add(inference)
                read = partial(self._read, inference)
                self.offload.run(work, read, lambda inputs, error: self._was_read(inference, inputs, error))
                return
            inference.inputs, inference.unread = checks.read(inference, self._taken), {}
        self._accept(inference)

    def enter(self, inference: Inference) -> None:
        """Hold a request that an endpoint passes to `text` itself, until it `left`, is cancelled or is refused."""
        inference.queued, inference.place = now(), self
        self._reading.add(inference)

    def left(self, inference: Inference, why: Refused | None) -> None:
        """Note the end of a request that has entered."""
        if inference.is_over:
            return
        self._reading.discard(inference)
        if why is None:
            t, inference.started = now(), max(inference.started, inference.queued)
            inference.queue_ns = inference.started - inference.queued
            compute = 0, t - inference.started, 0
            self.counted.executed(1, compute, t)
            self.succeeded(inference, compute)
        else:
            self.failed(inference, why)
        self._check_drained()

    def _read(self, inference: Inference) -> Tensors:
        return {} if inference.is_over else checks.read(inference, self._taken)

    def _was_read(self, inference: Inference, inputs: Tensors | None, error: BaseException | None) -> None:
        """Accept the request now that its inputs are read and checked, or refuse it."""
        self._reading.discard(inference)
        if inference.is_over:
            return
        try:
            if inputs is None:
                raise reason(error or RuntimeError("the inputs cannot be read"))
            inference.inputs, inference.unread, inference.place = inputs, {}, None
            self._accept(inference)
        except Refused as why:
            self._end(inference)
            self._tell_end(inference, Refused(why.code, why.message))
        self._check_drained()

    def _accept(self, inference: Inference) -> None:
        inference.queued = t = now()
        if inference.deadline <= t:
            raise self._rejected(inference, "DEADLINE_EXCEEDED", _EXPIRED)
        if self._queue.is_full:
            raise self._rejected(inference, "RESOURCE_EXHAUSTED", "Exceeds maximum queue size")
        timeout = (checks.timeout_ns(inference) if inference.parameters else 0) or self._timeout
        if timeout and t + timeout < inference.deadline:
            inference.deadline = t + timeout
        wanted = inference.wanted
        if self._instant is None or (wanted and any([each.classes or each.placed for each in wanted])):
            inference.place = self
            self._queue.put(inference)
        else:
            self._compute(inference, self._instant, t)

    def _compute(self, inference: Inference, instant: Callable[..., Tensors], t: int) -> None:
        """Compute and respond at once: the short way of an `Execution` that ends before it could be cancelled."""
        inference.started = computed = t
        try:
            outputs = instant(inference.inputs, inference.parameters)
            computed = now()
            share = self.responses.one(outputs, inference)
        except Exception as error:
            share = reason(error)
        if isinstance(share, Refused):
            self.failed(inference, share)
            return
        split = now()
        inference.compute_ns = split - t
        self.answered(inference, share)
        compute = 0, computed - t, split - computed
        self.counted.executed(inference.rows, compute, split)
        self.succeeded(inference, compute)

    def cancel(self, inference: Inference) -> None:
        if inference.is_over:
            return
        place = inference.place
        self._queue.remove(inference)
        self._reading.discard(inference)
        if not inference.is_over:  # the batch that could start without it may have cancelled it, too
            self.failed(inference, Refused("CANCELLED", named(inference, "the request was cancelled")))
        if isinstance(place, Execution) and all(one.is_over for one in place.batch):
            place.cancel()
        self._check_drained()

    def _start(self, batch: list[Inference]) -> None:
        instance = self._idle.popleft()
        if self._is_unlimited:
            self._idle.append(instance)
        execution = Execution(self, instance, batch)
        self._running.add(execution)
        execution.start()

    def _expired(self, inference: Inference) -> None:
        self.failed(inference, Refused("DEADLINE_EXCEEDED", named(inference, _EXPIRED)))
        self._check_drained()

    def _rejected(self, inference: Inference, code: Code, message: str) -> Refused:
        self.counted.failed(inference.queued - inference.arrived, "REJECTED")
        return Refused(code, named(inference, message))

    # --- called by executions ---

    def tell(self, call: Callable[..., None], *words: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *words)

    def answered(self, inference: Inference, outputs: tuple[Output, ...]) -> None:
        try:
            inference.answer(outputs)
        except Exception as error:
            self._trouble(error)

    def succeeded(self, inference: Inference, compute: Compute) -> None:
        self._end(inference)
        self.counted.succeeded(inference, compute)
        self._tell_end(inference, None)

    def failed(self, inference: Inference, why: Refused) -> None:
        self._end(inference)
        self.counted.failed(inference.finished - inference.arrived, _REASONS.get(why.code, "OTHER"))
        self._tell_end(inference, why)

    def _end(self, inference: Inference) -> None:
        inference.is_over = True
        inference.finished = now()
        inference.place = None
        self._models.over()

    def _tell_end(self, inference: Inference, why: Refused | None) -> None:
        try:
            inference.ended(why)
        except Exception as error:
            self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        """Handle an error in a front end's callback, which must not affect the batch."""
        self._loop.call_exception_handler({"message": "the callback of a request failed", "exception": error})

    def executed(self, execution: Execution, compute: Compute | None) -> None:
        self._running.discard(execution)
        if compute is not None:
            self.counted.executed(sum([inference.rows for inference in execution.batch]), compute, now())
        if not self._is_unlimited:
            self._idle.append(execution.instance)
        self._queue.release()
        self._check_drained()

    # --- its end ---

    async def drained(self) -> None:
        """Wait until all of its requests are done and no thread computes any longer."""
        if self._drained is None:
            self._drained = self._loop.create_future()
        self._check_drained()
        await asyncio.shield(self._drained)

    def close(self) -> None:
        for instance in self._instances:
            instance.close()

    def refuse_all(self, why: Refused) -> None:
        """End all requests with an error."""
        running = list(self._running)
        waiting = [*self._queue.waiting, *self._reading, *(one for execution in running for one in execution.batch)]
        self._queue.waiting.clear()
        self._reading.clear()
        for inference in waiting:
            if not inference.is_over:
                self.failed(inference, why)
        for execution in running:
            execution.cancel()

    def _check_drained(self) -> None:
        if self._drained is None or self._drained.done() or self._running or self._queue.waiting or self._reading:
            return
        self._drained.set_result(None)
