"""Runs a batch on an instance, in the event loop or in a thread, and sends its responses.

Whatever a model raises becomes the response to its requests (INTERNAL, one line); the instance then takes the next
batch. If a batch fails in a thread or has invalid outputs, its requests are run again one by one, so that only the
faulty one fails.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from inferometer.serve.models.responses import Share, join
from inferometer.serve.models.types import Compute, Inference, Loaded, Refused, Tensors, reason
from inferometer.serve.offload import LARGE
from inferometer.serve.threads import Threads
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.models.model import Model

_AHEAD = 256
"""Responses that a model may be ahead of the loop."""


class Instance(msgspec.Struct, eq=False):
    """A loaded model with the threads that run it; only models with `run` use them."""

    loaded: Loaded
    threads: Threads

    def close(self) -> None:
        self.threads.close(self._close)

    def _close(self) -> None:
        with suppress(Exception):  # nobody is left to report errors to
            self.loaded.close()


class Execution:
    """One batch on one instance, from its start to the end of its last request."""

    __slots__ = (
        "_answered", "_began", "_cancel", "_computed", "_is_busy", "_is_over", "_joined", "_last", "_later", "_split",
        "batch", "instance", "owner",
    )  # fmt: skip

    def __init__(self, owner: "Model", instance: Instance, batch: list[Inference]) -> None:
        self.owner, self.instance, self.batch = owner, instance, batch
        self._cancel: Callable[[], None] | None = None
        self._is_over = self._answered = False
        self._is_busy = False
        """Whether a response is being prepared, maybe in a thread."""
        self._later: list[Tensors] = []
        """Responses that wait for it, so that they keep their order."""
        self._last: tuple[Refused | None] | None = None
        """The argument to finish with once they are done."""
        self._began = self._joined = self._computed = self._split = 0

    def start(self) -> None:
        self._began = now()
        for inference in self.batch:
            inference.place = self
            inference.started = self._began
            inference.queue_ns = self._began - inference.queued
        loaded, parameters = self.instance.loaded, self.batch[0].parameters
        try:
            if loaded.run is not None:
                self.instance.threads.do(self._run, self._ran)
                return
            inputs = join(self.batch)
            self._joined = now()
            if loaded.instant is not None:
                self._emit(loaded.instant(inputs, parameters))
                self._finish(None)
                return
            if loaded.forward is not None:
                cancel = loaded.forward(self.batch[0], self._emit, self._finish)
            else:
                assert loaded.begin is not None
                cancel = loaded.begin(inputs, parameters, self._emit, self._finish)
        except Exception as error:
            self._finish(reason(error))
            return
        if not self._is_over:
            self._cancel = cancel
            if all(inference.is_over for inference in self.batch):  # all were cancelled meanwhile
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
        if self._is_busy:
            self._later.append(outputs)
        elif not self._is_over:
            self._prepare(outputs, self.owner.responses.work(outputs, self.batch))

    def _prepare(self, outputs: Tensors, work: int) -> None:
        self._computed = now()
        if work:
            self._is_busy = True
            self.owner.offload.run(work, partial(self.owner.responses.share, outputs, self.batch), self._prepared)
            return
        try:
            made = self.owner.responses.share(outputs, self.batch)
        except Exception as error:
            self._finish(reason(error))
        else:
            self._prepared(made, None)

    def _prepared(self, made: list[Share] | None, error: BaseException | None) -> None:
        self._is_busy = False
        if self._is_over:
            return
        if made is None:
            assert error is not None
            self._finish(reason(error))
            return
        self._split = now()
        self._answer(made)
        if self._later:
            self._prepare(self._later.pop(0), LARGE + 1)  # in a thread, so that this does not recurse
        elif self._last is not None:
            self._finish(*self._last)

    def _finish(self, why: Refused | None) -> None:
        if self._is_over:
            return
        if self._is_busy:
            self._last = (why,)
            return
        if self.owner.decoupled or not self._split:
            self._computed = self._split = now()
        self._end(why, (self._joined - self._began, self._computed - self._joined, self._split - self._computed))

    # --- run in a thread ---

    def _run(self) -> tuple[list[Share], Refused | None, Compute]:
        """Return the responses that are not sent yet, an error that concerns all requests, and the times."""
        begin = joined = now()
        run, responses = self.instance.loaded.run, self.owner.responses
        assert run is not None
        try:
            inputs = join(self.batch)
            joined = now()
            outputs = run(inputs, self.batch[0].parameters)
            if not isinstance(outputs, dict):
                self._iterate(outputs)
                return [], None, (joined - begin, now() - joined, 0)
            computed = now()
            made = responses.share(outputs, self.batch)
            if len(self.batch) == 1 or not responses.misses_some(outputs, made):
                return made, None, (joined - begin, computed - joined, now() - computed)
        except BaseException as error:  # even SystemExit: the thread is still needed
            if len(self.batch) == 1:
                return [], reason(error), (0, 0, 0)
        inputs, outputs, made = {}, {}, []  # frees what the batch held: it may have run out of memory
        for inference in self.batch:
            if not inference.is_over:
                share = self._alone(inference)
                self.owner.tell(self._answer_alone, inference, share, (joined - begin, now() - joined, 0))
        return [], None, (joined - begin, now() - joined, 0)

    def _alone(self, inference: Inference) -> Share:
        """Run one request of a failed batch: what is wrong with one is no reason to refuse the others."""
        assert self.instance.loaded.run is not None
        try:
            outputs = self.instance.loaded.run(join([inference]), inference.parameters)
            if isinstance(outputs, dict):
                return self.owner.responses.one(outputs, inference)
            return Refused("INTERNAL", "the model returned several responses, but is not configured as decoupled")
        except BaseException as error:
            return reason(error)

    def _answer_alone(self, inference: Inference, made: Share, compute: Compute) -> None:
        """Respond to one request without waiting for the others."""
        self._answered = True
        self._give(inference, made, now())
        if not inference.is_over:
            self.owner.succeeded(inference, compute)

    def _iterate(self, responses: Iterator[Tensors]) -> None:
        """Send responses as they come; closed after the first one that no request wants."""
        room = threading.Semaphore(_AHEAD)
        try:
            for outputs in responses:
                if all(inference.is_over for inference in self.batch):
                    break
                room.acquire()
                self.owner.tell(self._answer_next, self.owner.responses.share(outputs, self.batch), room)
        finally:
            if close := getattr(responses, "close", None):
                close()

    def _answer_next(self, made: list[Share], room: threading.Semaphore) -> None:
        room.release()
        self._answer(made)

    def _ran(self, result: tuple[list[Share], Refused | None, Compute], _: BaseException | None) -> None:
        made, why, compute = result
        if made:
            self._answer(made)
        self._end(why, compute)

    # --- both ---

    def _answer(self, made: list[Share]) -> None:
        if self._answered and not self.owner.decoupled:
            return
        t = now()
        self._answered = True
        for inference, share in zip(self.batch, made, strict=True):
            self._give(inference, share, t)

    def _give(self, inference: Inference, share: Share, t: int) -> None:
        if inference.is_over:
            return
        if isinstance(share, Refused):
            self.owner.failed(inference, share)
            return
        if not inference.compute_ns:  # the first response
            inference.compute_ns = t - inference.started
        self.owner.answered(inference, share)

    def _end(self, why: Refused | None, compute: Compute) -> None:
        if why is None and not self._answered and not self.owner.decoupled:
            why = Refused("INTERNAL", "the model returned no response")
        self._is_over = True
        self._cancel = None
        for inference in self.batch:
            if inference.is_over:
                continue
            if why is None:
                self.owner.succeeded(inference, compute)
            else:
                self.owner.failed(inference, why)
        self.owner.executed(self, compute if why is None else None)
