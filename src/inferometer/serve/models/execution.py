"""Runs a batch on an instance, in the event loop or in a thread, and sends its responses.

Whatever a model raises becomes the response to the requests of its batch (INTERNAL, one line); the instance then takes
the next batch.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from inferometer.serve.models.responses import Share, join
from inferometer.serve.models.types import Compute, Inference, Loaded, Refused, Tensors, reason
from inferometer.serve.offload import Threads
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

    __slots__ = ("_began", "_cancel", "_computed", "_is_over", "_joined", "_responses", "batch", "instance", "owner")

    def __init__(self, owner: "Model", instance: Instance, batch: list[Inference]) -> None:
        self.owner, self.instance, self.batch = owner, instance, batch
        self._cancel: Callable[[], None] | None = None
        self._is_over = False
        self._responses = 0
        self._began = self._joined = self._computed = 0

    def start(self) -> None:
        self._began = self._joined = now()
        for inference in self.batch:
            inference.place = self
            inference.started = self._began
            inference.queue_ns = self._began - inference.queued
        loaded, first = self.instance.loaded, self.batch[0]
        try:
            if loaded.run is not None:
                self.instance.threads.do(self._run, self._ran)
                return
            if loaded.forward is not None:
                cancel = loaded.forward(first, self._emit, self._finish)
            else:
                assert loaded.begin is not None
                inputs = join(self.batch)
                self._joined = now()
                cancel = loaded.begin(inputs, first.parameters, self._emit, self._finish)
        except Exception as error:
            self._finish(reason(error))
            return
        if not self._is_over:
            self._cancel = cancel
            self.cancel_if_unwanted()

    def cancel_if_unwanted(self) -> None:
        """Stop if no request waits any longer. A thread notices at its next response."""
        if self._cancel is not None and self._is_unwanted():
            cancel, self._cancel = self._cancel, None
            try:
                cancel()
            except Exception as error:
                self._finish(reason(error))

    def _is_unwanted(self) -> bool:
        return all(inference.is_over for inference in self.batch)

    # --- begun in the loop ---

    def _emit(self, outputs: Tensors) -> None:
        if not self._is_over and (self.owner.decoupled or not self._responses):
            self._computed = now()
            self._answer(self.owner.responses.share(outputs, self.batch))

    def _finish(self, why: Refused | None) -> None:
        if self._is_over:
            return
        if why is None and not self._responses and not self.owner.decoupled:
            why = Refused("INTERNAL", "the model returned no response")
        t = now()
        computed = t if self.owner.decoupled else self._computed
        self._end(why, (self._joined - self._began, computed - self._joined, t - computed))

    # --- run in a thread ---

    def _run(self) -> tuple[list[Share], Compute]:
        """Return the responses that are not sent yet, and the times."""
        begin, run = now(), self.instance.loaded.run
        assert run is not None
        inputs = join(self.batch)
        joined = now()
        outputs = run(inputs, self.batch[0].parameters)
        if not isinstance(outputs, dict):
            self._iterate(outputs)
            return [], (joined - begin, now() - joined, 0)
        computed = now()
        made = self.owner.responses.share(outputs, self.batch)
        return made, (joined - begin, computed - joined, now() - computed)

    def _iterate(self, responses: Iterator[Tensors]) -> None:
        """Send the responses of a decoupled model as they come; closed after the first one that no request wants."""
        room = threading.Semaphore(_AHEAD)
        try:
            for outputs in responses:
                if self._is_unwanted():
                    break
                room.acquire()
                self.owner.tell(self._answer, self.owner.responses.share(outputs, self.batch), room)
        finally:
            if close := getattr(responses, "close", None):
                close()

    def _ran(self, result: tuple[list[Share], Compute] | None, error: BaseException | None) -> None:
        made, compute = result or ([], (0, 0, 0))
        if made:
            self._answer(made)
        self._end(None if error is None else reason(error), compute)

    # --- both ---

    def _answer(self, made: list[Share], room: threading.Semaphore | None = None) -> None:
        if room is not None:
            room.release()
        t = now()
        self._responses += 1
        for inference, share in zip(self.batch, made, strict=True):
            if inference.is_over:
                continue
            if isinstance(share, Refused):
                self.owner.failed(inference, share)
                self.cancel_if_unwanted()
                continue
            if not inference.compute_ns:  # the first response
                inference.compute_ns = t - inference.started
            self.owner.answered(inference, share)

    def _end(self, why: Refused | None, compute: Compute) -> None:
        self._is_over, self._cancel = True, None
        for inference in self.batch:
            if inference.is_over:
                continue
            if why is None:
                self.owner.succeeded(inference, compute)
            else:
                self.owner.failed(inference, why)
        self.owner.executed(self, compute if why is None else None)
