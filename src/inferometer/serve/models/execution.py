"""Runs a batch on an instance, in the event loop or in a thread, and sends its responses.

Whatever a model raises becomes the response to its requests (INTERNAL, one line); the instance then takes the next
batch. If a batch fails in a thread or has invalid outputs, its requests are run again one by one, so that only the
faulty one fails.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from inferometer.errors import UserError
from inferometer.serve.models.batches import join, split
from inferometer.serve.models.outputs import check, check_complete, select
from inferometer.serve.models.shared_memory import AT_ONCE
from inferometer.serve.models.types import HTTP_STATUS, Inference, Loaded, ModelSignature, Output, Refused, Tensors
from inferometer.serve.threads import Threads
from inferometer.timing.clock import now

Job = Callable[[], None]
Compute = tuple[int, int, int]
"""Nanoseconds of joining the inputs, inferring, and splitting the outputs."""
Shares = list[tuple[Output, ...] | Refused]
"""One entry per request of a batch."""
_AHEAD = 256
"""Responses that a model may be ahead of the loop."""
_LARGE = 16 << 10
"""Size from which finding the strings in a batch may take some ms."""
_LENGTH = 1000
"""Maximum length of an error message."""


class ExecutingModel(Protocol):
    """The part of the model that an execution uses."""

    labels: Mapping[str, tuple[str, ...]]
    batched: bool
    decoupled: bool
    facts: ModelSignature
    aside: Threads
    """A single thread, so that responses keep their order."""

    def answered(self, inference: Inference, outputs: tuple[Output, ...]) -> None: ...
    def succeeded(self, inference: Inference, compute: Compute) -> None: ...
    def failed(self, inference: Inference, why: Refused) -> None: ...
    def executed(self, execution: "Execution", compute: Compute | None) -> None: ...


# --- instances -------------------------------------------------------------------------------------------------------


class Instance:
    """A loaded model with the threads that run it; models with `begin` need no threads."""

    def __init__(self, loaded: Loaded, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.loaded, self.loop = loaded, loop
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        """Threads that wait for a job; counted in the loop, so it may be too small for a moment."""
        self._left = 0
        self._lock = threading.Lock()

    def do(self, job: Job) -> None:
        """Start a job; raises RuntimeError if the system cannot create a thread."""
        if self._idle:
            self._idle -= 1
        else:
            threading.Thread(target=self._work, name=f"{self._name} {self._threads + 1}", daemon=True).start()
            self._threads += 1
        self._jobs.put(job)

    def done(self) -> None:
        """Note that a thread is idle again."""
        self._idle += 1

    def close(self) -> None:
        """Stop the threads after their current jobs; the last one closes what was loaded."""
        self._left = self._threads
        for _ in range(self._threads):
            self._jobs.put(None)
        if not self._threads:
            _quietly(self.loaded.close)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # otherwise its tensors would be kept until the next job
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            _quietly(self.loaded.close)


def _quietly(close: Job) -> None:
    """Ignore errors of a model that is being closed: nobody is left to report them to."""
    with suppress(Exception):
        close()


# --- executions ------------------------------------------------------------------------------------------------------


class Execution:
    """One batch on one instance, from its start to the end of its last request."""

    __slots__ = (
        "_answered",
        "_aside",
        "_began",
        "_cancel",
        "_computed",
        "_is_over",
        "_joined",
        "_last",
        "_split",
        "batch",
        "instance",
        "owner",
    )

    def __init__(self, owner: ExecutingModel, instance: Instance, batch: list[Inference]) -> None:
        self.owner, self.instance, self.batch = owner, instance, batch
        self._cancel: Callable[[], None] | None = None
        self._is_over = False
        self._answered = False
        self._aside = 0
        """Responses that are being processed in a thread."""
        self._last: tuple[Refused | None] | None = None
        """The arguments to finish with once those are done."""
        self._began = self._joined = self._computed = self._split = 0

    def start(self) -> None:
        self._began = now()
        for inference in self.batch:
            inference.place = self
            inference.started = self._began
            inference.queue_ns = self._began - inference.queued
        try:
            loaded = self.instance.loaded
            if loaded.forward is not None:
                cancel: Callable[[], None] | None = loaded.forward(self.batch[0], self._emit, self._finish)
            elif loaded.begin is not None:
                inputs = join(self.batch)
                self._joined = now()
                cancel = loaded.begin(inputs, self.batch[0].parameters, self._emit, self._finish)
            else:
                self.instance.do(self._run)
                return
        except Exception as error:
            self._finish(reason(error))
            return
        if not self._is_over:
            self._cancel = cancel
            if cancel is not None and all(
                inference.is_over for inference in self.batch
            ):  # all were cancelled meanwhile
                self.cancel()

    def cancel(self) -> None:
        """Stop, because no request waits any longer. A thread notices at its next response."""
        if self._cancel is not None and not self._is_over:
            cancel, self._cancel = self._cancel, None
            try:
                cancel()
            except Exception as error:
                self._finish(reason(error))

    # --- begun in the loop ---

    def _emit(self, outputs: Tensors) -> None:
        if self._is_over:
            return
        self._computed = now()
        try:
            if self._aside or self._takes_long(outputs):
                self.owner.aside.do(partial(self._shares, outputs, self.batch), self._shared)
                self._aside += 1
                return
            made = self._shares(outputs, self.batch)
        except Exception as error:
            self._finish(reason(error))
            return
        self._split = now()
        self._answer(made)

    def _takes_long(self, outputs: Tensors) -> bool:
        """Whether to use a thread so that the loop can go on: to find many strings, or to sort or copy a large output."""
        if len(self.batch) == 1 and not self.batch[0].wanted:
            return False
        size = max([len(tensor.data) for tensor in outputs.values()], default=0)
        if size <= _LARGE:
            return False
        if len(self.batch) > 1 and any(tensor.datatype == "BYTES" for tensor in outputs.values()):
            return True
        return size > AT_ONCE and any(
            each.classes or each.placed is not None for inference in self.batch for each in inference.wanted
        )

    def _shared(self, made: Shares, error: BaseException | None) -> None:
        if self._is_over:
            return
        self._aside -= 1
        if error is not None:
            self._aside = 0
            self._finish(reason(error))
            return
        self._split = now()
        self._answer(made)
        if self._last is not None:
            self._finish(*self._last)

    def _finish(self, why: Refused | None) -> None:
        if self._is_over:
            return
        if self._aside:
            self._last = (why,)
            return
        if why is None and not self._answered and not self.owner.decoupled:
            why = Refused("INTERNAL", "the model returned no response")
        if self.owner.decoupled or not self._split:
            self._computed = self._split = now()
        self._end(why, (self._joined - self._began, self._computed - self._joined, self._split - self._computed))

    # --- run in a thread ---

    def _run(self) -> None:
        why: Refused | None = None
        compute: Compute = (0, 0, 0)
        try:
            compute = self._compute()
        except BaseException as error:  # even SystemExit: the thread is still needed
            why = reason(error)
        self._tell(self._ran, why, compute)

    def _compute(self) -> Compute:
        begin = now()
        made, joined, computed = self._together()
        if isinstance(made, list):
            self._tell(self._answer, made)
            return joined - begin, computed - joined, now() - computed
        if made is not None:
            self._iterate(made)
            return joined - begin, now() - joined, 0
        for inference in self.batch:  # what the failure held is freed by now: it may have been out of memory
            if not inference.is_over:
                self._tell(self._answer_alone, inference, self._alone(inference), (joined - begin, now() - joined, 0))
        return joined - begin, now() - joined, 0

    def _together(self) -> tuple[Shares | Iterator[Tensors] | None, int, int]:
        """Run the whole batch. Return its outputs (None if it fails and has more than one request), and when computing
        began and ended."""
        assert self.instance.loaded.run is not None
        joined = now()
        try:
            inputs = join(self.batch)
            joined = now()
            outputs = self.instance.loaded.run(inputs, self.batch[0].parameters)
            computed = now()
            if not isinstance(outputs, dict):
                return outputs, joined, computed
            made = self._shares(outputs, self.batch)
            if len(self.batch) == 1 or not self._misses_some(outputs, made):
                return made, joined, computed
        except BaseException:
            if len(self.batch) == 1:
                raise
        return None, joined, joined

    def _misses_some(self, outputs: Tensors, made: Shares) -> bool:
        """Whether outputs that a request should have are missing."""
        return len(outputs) < len(self.owner.facts.outputs) and any(isinstance(share, Refused) for share in made)

    def _alone(self, inference: Inference) -> tuple[Output, ...] | Refused:
        """Run one request of a failed batch: what is wrong with one is no reason to refuse the others."""
        assert self.instance.loaded.run is not None
        try:
            outputs = self.instance.loaded.run(join([inference]), inference.parameters)
            if not isinstance(outputs, dict):
                return Refused("INTERNAL", "the model returned several responses, but is not configured as decoupled")
            return self._shares(outputs, [inference])[0]
        except BaseException as error:
            return reason(error)

    def _answer_alone(self, inference: Inference, made: tuple[Output, ...] | Refused, compute: Compute) -> None:
        """Respond to one request without waiting for the others."""
        self._answered = True
        self._give(inference, made, now())
        if not inference.is_over:
            self.owner.succeeded(inference, compute)

    def _iterate(self, answers: Iterator[Tensors]) -> None:
        """Send responses as they come; closed after the first one that no request wants."""
        room = threading.Semaphore(_AHEAD)
        try:
            for outputs in answers:
                if all(inference.is_over for inference in self.batch):
                    break
                room.acquire()
                self._tell(self._answer_next, self._shares(outputs, self.batch), room)
        finally:
            close = getattr(answers, "close", None)
            if close is not None:
                close()

    def _answer_next(self, made: Shares, room: threading.Semaphore) -> None:
        room.release()
        self._answer(made)

    def _ran(self, why: Refused | None, compute: Compute) -> None:
        self.instance.done()
        if why is None and not self._answered and not self.owner.decoupled:
            why = Refused("INTERNAL", "the model returned no response")
        self._end(why, compute)

    def _tell(self, call: Callable[..., None], *words: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.instance.loop.call_soon_threadsafe(call, *words)

    # --- both ---

    def _shares(self, outputs: Tensors, batch: list[Inference]) -> Shares:
        """Return each request's outputs as it wants them; one request's shared-memory error does not affect the others."""
        owner, rows = self.owner, [inference.rows for inference in batch]
        check(outputs, owner.facts.outputs, sum(rows) if owner.batched else None)
        if len(batch) == 1:
            return [self._selected(batch[0], outputs)]
        shares = split(outputs, rows)
        return [self._selected(inference, share) for inference, share in zip(batch, shares, strict=True)]

    def _selected(self, inference: Inference, outputs: Tensors) -> tuple[Output, ...] | Refused:
        owner = self.owner
        try:
            if len(outputs) < len(owner.facts.outputs) and not owner.decoupled:
                check_complete(outputs, inference, owner.facts)
            return select(outputs, inference, owner.labels, owner.batched)
        except Exception as error:
            return reason(error)

    def _answer(self, made: Shares) -> None:
        if self._answered and not self.owner.decoupled:
            return
        t = now()
        self._answered = True
        for inference, outputs in zip(self.batch, made, strict=True):
            self._give(inference, outputs, t)

    def _give(self, inference: Inference, outputs: tuple[Output, ...] | Refused, t: int) -> None:
        if inference.is_over:
            return
        if isinstance(outputs, Refused):
            self.owner.failed(inference, outputs)
            return
        if not inference.compute_ns:  # the first response
            inference.compute_ns = t - inference.started
        self.owner.answered(inference, outputs)

    def _end(self, why: Refused | None, compute: Compute) -> None:
        self._is_over = True
        self._cancel = None
        for inference in self.batch:
            if not inference.is_over:
                if why is None:
                    self.owner.succeeded(inference, compute)
                else:
                    self.owner.failed(inference, why)
        self.owner.executed(self, compute if why is None else None)


def reason(error: BaseException) -> Refused:
    """Convert an exception to an error of one line, without its frames and the tensors that they hold."""
    try:
        return _shown(error)
    except BaseException:  # str() of a model's own exception may raise; the client must get a response
        return Refused("INTERNAL", f"{type(error).__name__} (its message cannot be displayed)")


def _shown(error: BaseException) -> Refused:
    if isinstance(error, Refused):
        if error.code in tuple(HTTP_STATUS):
            return Refused(error.code, error.message)
        return Refused("INTERNAL", f"{error.message} (raised with the unknown code {error.code!r:.60})")
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    text = " ".join(text.split())
    if len(text) > _LENGTH:  # libraries put the cause at the end of long messages
        text = f"{text[: _LENGTH // 2]} ... {text[-_LENGTH // 2 :]}"
    return Refused("INTERNAL", text)
