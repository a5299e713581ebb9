"""A loaded version of a model: its queue, instances and statistics. Used in the event loop's thread only."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from inferometer.serve.models import checks, configs
from inferometer.serve.models.checks import named
from inferometer.serve.models.execution import Execution, Responses, Share
from inferometer.serve.models.queue import UNLIMITED, Policy, Queue
from inferometer.serve.models.statistics import Reason, Statistics
from inferometer.serve.models.types import Code, Compute, Inference, Loaded, Output, Refused, Tensors, reason
from inferometer.serve.offload import LARGE, Threads
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.models.registry import Models

_REASONS: dict[Code, Reason] = {
    "CANCELLED": "CANCELED", "DEADLINE_EXCEEDED": "REJECTED", "RESOURCE_EXHAUSTED": "REJECTED", "INTERNAL": "BACKEND",
}  # fmt: skip
_EXPIRED = "Request timeout expired"


class Model:
    """A loaded version of a model."""

    def __init__(self, models: "Models", config: Any, version: str, platform: str, loaded: Sequence[Loaded]) -> None:
        self.is_remote = loaded[0].forward is not None
        """Whether it runs in another process, which also queues, batches and counts its requests."""
        policy = Policy() if self.is_remote else configs.policy(config)
        self.name, self.version, self.config, self.platform = config.name, version, config, platform
        self.facts, self.labels = configs.facts(config), loaded[0].labels
        self.versions = (version,)
        self.decoupled: bool = config.model_transaction_policy.decoupled
        self.text = loaded[0].text
        """What the OpenAI endpoints serve it with; None if it is not a text model."""
        self._counted = Statistics()
        self.responses = Responses(self.facts, self.labels, config.max_batch_size > 0, self.decoupled)
        self._models, self.loop = models, models.loop
        self._timeout_ns = policy.timeout_ns
        self._taken = checks.Taken(self.name, config.max_batch_size, self.facts, policy.batching)
        self._instant = loaded[0].instant
        slots = loaded[0].slots
        for i, each in enumerate(loaded):
            each.threads = Threads(models.loop, slots or 1, f"{self.name} {i}")
        self._instances, self._is_unlimited = loaded, not slots
        self._idle = deque([*loaded] * (slots or 1))
        free = UNLIMITED if self._is_unlimited else len(self._idle)
        self._queue = Queue(policy, models.alarms, now, self._start, self._expired, free)
        self._requests: dict[Inference, None] = {}
        """Requests in progress, except those that are computed at once; in order of arrival."""
        self._n_running = 0
        """Executions in progress, including those in threads whose requests were cancelled."""
        self._drained: asyncio.Future[None] | None = None

    @property
    def owner(self) -> "Model":
        """The model that cancels a request that is in this `place`."""
        return self

    @property
    def pending(self) -> int:
        """Number of queued requests."""
        return len(self._queue.waiting)

    @property
    def counted(self) -> Statistics:
        """Everything that was counted so far."""
        self._counted.fold()
        return self._counted

    def statistics(self) -> Any:
        return self.counted.message(self.name, self.version)

    # --- requests ---

    def submit(self, inference: Inference) -> None:
        is_whole = checks.check(inference, self._taken)
        if inference.wanted:
            inference.memory = self._models.regions.places(inference.wanted)
        if not is_whole:
            read, work = partial(checks.read, inference, self._taken), checks.work(inference)
            if work > LARGE:
                self._hold(inference)
                self._models.offload.run(work, read, partial(self._was_read, inference))
                return
            inference.inputs, inference.unread = read(), {}
        self._accept(inference)

    def _was_read(self, inference: Inference, inputs: Tensors | None, error: BaseException | None) -> None:
        """Accept the request now that its inputs are read and checked, or refuse it."""
        if inference.is_over:
            return
        try:
            if error is not None:
                raise reason(error)
            inference.inputs, inference.unread = inputs or {}, {}
            self._accept(inference)
        except Refused as why:  # not counted, like a request that is refused at once
            self._end(inference)
            self._tell(inference.ended, why)

    def _accept(self, inference: Inference) -> None:
        inference.queued = t = now()
        if inference.deadline <= t:
            raise self._rejected(inference, "DEADLINE_EXCEEDED", _EXPIRED)
        if self._instant is None and self._queue.is_full:
            raise self._rejected(inference, "RESOURCE_EXHAUSTED", "Exceeds maximum queue size")
        timeout = (checks.timeout_ns(inference) if inference.parameters else 0) or self._timeout_ns
        if timeout and t + timeout < inference.deadline:
            inference.deadline = t + timeout
        if self._instant is None:
            self._hold(inference)
            self._queue.put(inference)
        else:
            self._compute(inference, self._instant, t)

    def _rejected(self, inference: Inference, code: Code, message: str) -> Refused:
        self._counted.failed(inference.queued - inference.arrived, "REJECTED")
        return Refused(code, named(inference, message))

    def _compute(self, inference: Inference, instant: Callable[..., Tensors], t: int) -> None:
        """Compute and respond at once, without the queue."""
        inference.started = computed = t
        made: Share
        try:
            outputs = instant(inference.inputs, inference.parameters)
            computed = now()
            made = self.responses.one(outputs, inference)
        except Exception as error:
            made = reason(error)
        if isinstance(made, Refused):
            self.failed(inference, made)
            return
        split = now()
        inference.compute_ns = split - t
        self.responded(inference, made)
        if not inference.is_over:  # its connection may be lost
            compute = 0, computed - t, split - computed
            self._counted.executed(inference.rows, compute, split)
            self.succeeded(inference, compute, split)

    def cancel(self, inference: Inference, why: Refused | None = None) -> None:
        """End a request: because its client cancelled it, or for another reason."""
        if inference.is_over:
            return
        place = inference.place
        self._queue.remove(inference)
        self.failed(inference, why or Refused("CANCELLED", named(inference, "the request was cancelled")))
        if isinstance(place, Execution):
            place.cancel_if_unwanted()
        self._queue.dispatch()

    # --- requests that an endpoint passes to `text` itself ---

    def enter(self, inference: Inference) -> None:
        """Hold a request until it `left`, is cancelled or is refused."""
        inference.queued = now()
        self._hold(inference)

    def left(self, inference: Inference, why: Refused | None) -> None:
        """Note the end of a request that has entered."""
        if inference.is_over:
            return
        if why is None:
            t, inference.started = now(), max(inference.started, inference.queued)
            inference.queue_ns = inference.started - inference.queued
            compute = 0, t - inference.started, 0
            self._counted.executed(1, compute, t)
            self.succeeded(inference, compute)
        else:
            self.failed(inference, why)

    # --- called by the queue and by executions ---

    def _start(self, batch: list[Inference]) -> None:
        instance = self._idle.popleft()
        if self._is_unlimited:
            self._idle.append(instance)
        self._n_running += 1
        Execution(self, instance, batch).start()

    def _expired(self, inference: Inference) -> None:
        self.failed(inference, Refused("DEADLINE_EXCEEDED", named(inference, _EXPIRED)))

    def responded(self, inference: Inference, outputs: tuple[Output, ...]) -> None:
        try:  # like `_tell`, without a call
            inference.responded(outputs)
        except Exception as error:
            self._report(error)

    def succeeded(self, inference: Inference, compute: Compute, finished: int = 0) -> None:
        self._end(inference, finished)
        self._counted.succeeded(inference, compute)
        try:
            inference.ended(None)
        except Exception as error:
            self._report(error)

    def failed(self, inference: Inference, why: Refused) -> None:
        self._end(inference)
        self._counted.failed(inference.finished - inference.arrived, _REASONS.get(why.code, "OTHER"))
        self._tell(inference.ended, why)

    def executed(self, execution: Execution, compute: Compute | None) -> None:
        self._n_running -= 1
        if compute is not None:
            self._counted.executed(sum([inference.rows for inference in execution.batch]), compute, now())
        if not self._is_unlimited:
            self._idle.append(execution.instance)
        self._queue.release()
        self._check_drained()

    def _hold(self, inference: Inference) -> None:
        inference.place = self
        self._requests[inference] = None

    def _end(self, inference: Inference, finished: int = 0) -> None:
        inference.is_over = True
        inference.finished = finished or now()
        if inference.place is not None:
            inference.place = None
            del self._requests[inference]
            self._check_drained()
        self._models.over()

    def _tell(self, callback: Callable[[Any], None], result: object) -> None:
        """Call a front end; an error there must not affect the other requests of a batch."""
        try:
            callback(result)
        except Exception as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        self.loop.call_exception_handler({"message": "the callback of a request failed", "exception": error})

    # --- its end ---

    async def drained(self) -> None:
        """Wait until all of its requests are done and no thread computes any longer."""
        if self._drained is None:
            self._drained = self.loop.create_future()
        self._check_drained()
        await asyncio.shield(self._drained)

    def _check_drained(self) -> None:
        if self._drained is not None and not (self._requests or self._n_running or self._drained.done()):
            self._drained.set_result(None)

    def refuse_all(self, why: Refused) -> None:
        """End all requests with an error; the last ones first, so that none is started meanwhile."""
        for inference in reversed(list(self._requests)):
            self.cancel(inference, why)

    def close(self) -> None:
        for each in self._instances:
            each.threads.close(partial(_close, each))


def _close(loaded: Loaded) -> None:
    with suppress(Exception):  # nobody is left to report errors to
        loaded.close()
