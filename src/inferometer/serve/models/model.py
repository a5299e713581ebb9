"""A loaded version of a model: its queue, instances and statistics. Used in the event loop's thread only."""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from inferometer.serve.models import configs
from inferometer.serve.models.execution import Execution
from inferometer.serve.models.queue import UNLIMITED, Policy, Queue
from inferometer.serve.models.signature import ModelSignature, named, work
from inferometer.serve.models.statistics import Statistics
from inferometer.serve.models.types import Compute, Inference, Loaded, Refused, reason
from inferometer.serve.offload import Threads
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.models.registry import Models


class Model:
    """A loaded version of a model."""

    def __init__(self, models: "Models", config: Any, version: str, platform: str, loaded: Sequence[Loaded]) -> None:
        self.name, self.version, self.config, self.platform = config.name, version, config, platform
        self._models, self.loop, self.deadlines = models, models.loop, models.deadlines
        self.is_remote, self.labels, self.max_len = loaded[0].is_remote, loaded[0].labels, loaded[0].max_len
        self.decoupled: bool = config.model_transaction_policy.decoupled
        policy = Policy() if self.is_remote else configs.policy(config)
        self.signature = ModelSignature(config, policy.batching, self.labels)
        self.counted, self._timeout_ns = Statistics(self.name, version), policy.timeout_ns
        self._instant, slots = loaded[0].instant, loaded[0].slots
        for i, each in enumerate(loaded):
            each.threads = Threads(models.loop, slots or 1, f"{self.name} {i}")
        self._instances, self._is_unlimited = loaded, not slots
        self._idle = deque([*loaded] * (slots or 1))
        self._slots = UNLIMITED if self._is_unlimited else len(self._idle)
        self._queue = Queue(policy, models.deadlines, now, self._start, self._expired, self._slots)
        self._requests: dict[Inference, Execution | None] = {}
        """Requests in progress, except those that are computed at once, in order of arrival; with their executions."""

    @property
    def pending(self) -> int:
        """Number of queued requests."""
        return len(self._queue.waiting)

    def submit(self, inference: Inference) -> None:
        if inference.text is not None or self.signature.check(inference):
            self._accept(inference)
            return
        read, then = partial(self.signature.read, inference), partial(self._was_read, inference)
        self._models.offload.run(work(inference), read, then)
        if not inference.is_over:
            self._hold(inference)

    def _was_read(self, inference: Inference, _: None, error: BaseException | None) -> None:
        """Accept the request now that its inputs are read and checked, or refuse it."""
        if inference.is_over:
            return
        if error is None:
            self._accept(inference)
        else:  # not counted, like a request that is refused at once
            self._release(inference)
            inference.end(reason(error))

    def _accept(self, inference: Inference) -> None:
        """Queue the request, or compute it and respond at once."""
        inference.queued = t = now()
        if inference.deadline <= t:
            self._expired(inference)
            return
        own: Any = inference.parameters.get("timeout", 0) if inference.parameters else 0
        timeout = own * 1000 or self._timeout_ns
        if timeout and t + timeout < inference.deadline:
            inference.deadline = t + timeout
        if self._instant is None:
            if self._queue.is_full:
                self.end(inference, Refused("RESOURCE_EXHAUSTED", named(inference, "Exceeds maximum queue size")))
                return
            self._hold(inference)
            self._queue.put(inference)
            return
        inference.started = t
        try:
            outputs = self._instant(inference.inputs, inference.parameters)
            computed = now()
            self.signature.check_outputs(outputs, inference.rows)
            made = self.signature.chosen(outputs, inference)
        except Exception as error:
            self.end(inference, reason(error))
            return
        split = now()
        inference.compute_ns = split - t
        self.responded(inference, made)
        if not inference.is_over:  # its connection may be lost
            compute = 0, computed - t, split - computed
            self.counted.executed(inference.rows, compute, split)
            self.end(inference, None, compute, split)

    def cancel(self, inference: Inference, why: Refused | None = None) -> None:
        """End a request that is held: because its client cancelled it, or for another reason."""
        execution = self._requests[inference]
        self._queue.remove(inference)
        self.end(inference, why or Refused("CANCELLED", named(inference, "the request was cancelled")))
        if execution is not None:
            execution.cancel_if_unwanted()
        self._queue.dispatch()

    def _hold(self, inference: Inference) -> None:
        """Keep a request until it is over."""
        if inference.owner is None:
            inference.owner = self
            self._requests[inference] = None
            self._models.in_flight += 1

    def _start(self, batch: list[Inference]) -> None:
        instance = self._idle.popleft()
        if self._is_unlimited:
            self._idle.append(instance)
        execution = Execution(self, instance, batch)
        for inference in batch:
            self._requests[inference] = execution
        execution.start()

    def _expired(self, inference: Inference) -> None:
        self.end(inference, Refused("DEADLINE_EXCEEDED", named(inference, "Request timeout expired")))

    def responded(self, inference: Inference, outputs: Any) -> None:
        if inference.responded is None:
            inference.outputs = outputs
            return
        try:  # an error in a front end must not affect the other requests of a batch
            inference.responded(outputs)
        except Exception as error:
            self._report(error)

    def end(self, inference: Inference, why: Refused | None, compute: Compute = (0, 0, 0), finished: int = 0) -> None:
        """End a request: count it, and report its success or why it failed."""
        self._release(inference, finished)
        if why is None:
            self.counted.succeeded(inference, compute)
        else:
            self.counted.failed(inference.finished - inference.arrived, why.code)
        try:
            inference.end(why)
        except Exception as error:
            self._report(error)

    def executed(self, execution: Execution, compute: Compute | None) -> None:
        if compute is not None:
            self.counted.executed(sum([inference.rows for inference in execution.batch]), compute, now())
        if not self._is_unlimited:
            self._idle.append(execution.instance)
        self._queue.release()

    def _release(self, inference: Inference, finished: int = 0) -> None:
        inference.is_over = True
        inference.finished = finished or now()
        if inference.owner is not None:
            inference.owner = None
            del self._requests[inference]
            self._models.in_flight -= 1

    def _report(self, error: Exception) -> None:
        self.loop.call_exception_handler({"message": "the callback of a request failed", "exception": error})

    async def drained(self) -> None:
        """Wait until all of its requests are done and no thread computes any longer."""
        while self._requests or self._queue.free < self._slots:
            await asyncio.sleep(0.01)

    def refuse_all(self, why: Refused) -> None:
        """End all requests with an error; the last ones first, so that none is started meanwhile."""
        for inference in reversed(list(self._requests)):
            if not inference.is_over:
                self.cancel(inference, why)

    def close(self) -> None:
        """Close the instances, each after what it still computes."""
        for each in self._instances:
            if each.run is None:
                each.close()
            else:
                each.threads.do(each.close, lambda *_: None)
            each.threads.close()
