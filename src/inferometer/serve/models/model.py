"""A loaded version of a model: its queue, instances and statistics. Used in the event loop's thread only."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inferometer.serve.models import checks
from inferometer.serve.models.checks import named
from inferometer.serve.models.execution import Compute, Execution, Instance, reason
from inferometer.serve.models.queue import UNLIMITED, Policy, Queue, QueueClock
from inferometer.serve.models.shared_memory import Regions
from inferometer.serve.models.statistics import Reason, Statistics
from inferometer.serve.models.types import NEVER, Inference, ModelSignature, Output, Refused, Tensors
from inferometer.serve.threads import Threads
from inferometer.timing.clock import now

_REASONS: dict[str, Reason] = {
    "CANCELLED": "CANCELED",
    "DEADLINE_EXCEEDED": "REJECTED",
    "RESOURCE_EXHAUSTED": "REJECTED",
    "INTERNAL": "BACKEND",
}
_THREADS = 64
"""Maximum threads of an instance without its own limit."""
_READERS = 2
"""Threads that read large inputs. Python computes in one thread at a time, but others can copy meanwhile."""


class _Reading:
    """The current owner of an inference while its inputs are read in a thread."""

    __slots__ = ("owner",)

    def __init__(self, owner: "Model") -> None:
        self.owner = owner


class Model:
    """A loaded version of a model."""

    def __init__(
        self,
        *,
        name: str,
        version: str,
        config: Any,
        facts: ModelSignature,
        labels: Mapping[str, tuple[str, ...]],
        platform: str,
        policy: Policy,
        default_timeout_ns: int,
        instances: Sequence[Instance],
        regions: Regions,
        clock: QueueClock,
        over: Callable[[], None],
    ) -> None:
        self.name, self.version, self.config, self.facts = name, version, config, facts
        self.versions = (version,)
        self.labels, self.platform, self.regions = labels, platform, regions
        self.batched = config.max_batch_size > 0
        self.decoupled: bool = config.model_transaction_policy.decoupled
        self.counted = Statistics()
        self._timeout = default_timeout_ns
        self._taken = checks.taken(name, config.max_batch_size, facts, policy.batching)
        self._instances = instances
        self.text: Any = instances[0].loaded.text
        """What the OpenAI endpoints serve it with; None if it is not a text model."""
        self.is_remote = instances[0].loaded.forward is not None
        """Whether it runs in another process, which counts its requests."""
        self._is_unlimited = any(_slots(instance) == UNLIMITED for instance in instances)
        self._idle = deque(
            instance for instance in instances for _ in range(1 if self._is_unlimited else _slots(instance))
        )
        slots = UNLIMITED if self._is_unlimited else len(self._idle)
        self._queue = Queue(policy, clock, now, self._start, self._expired, slots, self)
        self._over = over
        self._running: set[Execution] = set()
        self._reading: set[Inference] = set()
        self._readers = Threads(instances[0].loop, _READERS, f"{name} inputs")
        self.aside = Threads(instances[0].loop, 1, f"{name} outputs")
        self._drained: asyncio.Future[None] | None = None

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
            inference.memory = self.regions.places(inference.wanted)
        if not is_whole:
            if checks.takes_long(inference):
                self._read(inference)
                return
            inference.inputs, inference.unread = checks.read(inference, self._taken), {}
        self._accept(inference)

    def _read(self, inference: Inference) -> None:
        """Read and check the rest of the inputs in a thread; the request is then accepted or refused."""
        try:
            self._readers.do(
                lambda: None if inference.is_over else checks.read(inference, self._taken),
                lambda inputs, error: self._was_read(inference, inputs, error),
            )
        except RuntimeError as error:
            raise Refused("RESOURCE_EXHAUSTED", named(inference, f"cannot read the inputs: {error}")) from None
        inference.place = _Reading(self)
        self._reading.add(inference)

    def _was_read(self, inference: Inference, inputs: Tensors, error: BaseException | None) -> None:
        self._reading.discard(inference)
        if inference.is_over:
            return
        try:
            if error is not None:
                raise reason(error)
            inference.inputs, inference.unread = inputs, {}
            self._accept(inference)
        except Refused as why:
            self._end(inference)
            self._tell_end(inference, Refused(why.code, why.message))
        self._check_drained()

    def _accept(self, inference: Inference) -> None:
        inference.queued = t = now()
        if inference.deadline <= t:
            raise self._rejected(inference, Refused("DEADLINE_EXCEEDED", named(inference, "Request timeout expired")))
        if self._queue.is_full:
            raise self._rejected(
                inference, Refused("RESOURCE_EXHAUSTED", named(inference, "Exceeds maximum queue size"))
            )
        timeout = _timeout_of(inference) or self._timeout
        if timeout and t + timeout < inference.deadline:
            inference.deadline = t + timeout
        self._queue.put(inference)

    def cancel(self, inference: Inference) -> None:
        if inference.is_over:
            return
        place = inference.place
        if isinstance(place, Queue):
            place.remove(inference)
        self._reading.discard(inference)
        self.failed(inference, Refused("CANCELLED", named(inference, "the request was cancelled")))
        if isinstance(place, Execution) and all(one.is_over for one in place.batch):
            place.cancel()
        self._check_drained()

    def _start(self, batch: list[Inference]) -> None:
        if self._is_unlimited:
            self._idle.rotate(-1)
            instance = self._idle[0]
        else:
            instance = self._idle.popleft()
        execution = Execution(self, instance, batch)
        self._running.add(execution)
        execution.start()

    def _expired(self, inference: Inference) -> None:
        self.failed(inference, Refused("DEADLINE_EXCEEDED", named(inference, "Request timeout expired")))
        self._check_drained()

    def _rejected(self, inference: Inference, why: Refused) -> Refused:
        self.counted.failed(inference.queued - inference.arrived, "REJECTED")
        return why

    # --- what executions say ---

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

    def _tell_end(self, inference: Inference, why: Refused | None) -> None:
        try:
            inference.ended(why)
        except Exception as error:
            self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        """Handle an error in a front end's callback, which must not affect the batch."""
        self._instances[0].loop.call_exception_handler(
            {"message": "the callback of a request failed", "exception": error}
        )

    def _end(self, inference: Inference) -> None:
        inference.is_over = True
        inference.finished = now()
        inference.place = None
        self._over()

    def executed(self, execution: Execution, compute: Compute | None) -> None:
        self._running.discard(execution)
        if compute is not None:
            self.counted.executed(sum([inference.rows for inference in execution.batch]), compute)
        if not self._is_unlimited:
            self._idle.append(execution.instance)
        self._queue.release()
        self._check_drained()

    # --- its end ---

    async def drained(self) -> None:
        """Wait until all of its requests are done and no thread computes any longer."""
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        self._check_drained()
        await asyncio.shield(self._drained)

    def close(self) -> None:
        self._readers.close()
        self.aside.close()
        for instance in self._instances:
            instance.close()

    def refuse_all(self, why: Refused) -> None:
        """End all requests with an error."""
        waiting = [*self._queue.waiting, *self._reading]
        self._queue.waiting.clear()
        self._reading.clear()
        for inference in waiting:
            if not inference.is_over:
                self.failed(inference, why)
        for execution in list(self._running):
            for inference in execution.batch:
                if not inference.is_over:
                    self.failed(inference, why)
            execution.cancel()

    def _check_drained(self) -> None:
        if self._drained is None or self._drained.done() or self._running or self._queue.waiting or self._reading:
            return
        self._drained.set_result(None)


def _slots(instance: Instance) -> int:
    return instance.loaded.slots or (_THREADS if instance.loaded.run is not None else UNLIMITED)


def _timeout_of(inference: Inference) -> int:
    """Return the request's own timeout in ns, or 0."""
    if not inference.parameters:
        return 0
    timeout = inference.parameters.get("timeout", 0)
    try:
        microseconds = int(timeout)
    except (ValueError, OverflowError):
        microseconds = -1
    if not 0 <= microseconds < NEVER // 1000:
        raise Refused(
            "INVALID_ARGUMENT", named(inference, f"timeout must be a number of microseconds (got {str(timeout)[:40]})")
        )
    return microseconds * 1000
