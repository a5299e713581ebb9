"""Runs a batch on an instance, in the event loop or in a thread, and sends its responses.

Whatever a model raises becomes the response to the requests of its batch (INTERNAL, one line); the instance then takes
the next batch.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from inferometer.serve.models.responses import Share, join
from inferometer.serve.models.types import Inference, Loaded, Refused, Tensors, reason
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.models.model import Model

_AHEAD = 256
"""Responses that a model may be ahead of the loop."""


class Execution:
    """One batch on one instance, from its start to the end of its last request."""

    __slots__ = ("_began", "_cancel", "_computed", "_is_over", "_joined", "_responses", "_shared", "batch", "instance", "owner")  # fmt: skip

    def __init__(self, owner: "Model", instance: Loaded, batch: list[Inference]) -> None:
        self.owner, self.instance, self.batch = owner, instance, batch
        self._cancel: Callable[[], None] | None = None
        self._is_over, self._responses = False, 0
        self._began = self._joined = self._computed = self._shared = 0

    def start(self) -> None:
        self._began = self._joined = now()
        for inference in self.batch:
            inference.place = self
            inference.started = self._began
            inference.queue_ns = self._began - inference.queued
        loaded, first = self.instance, self.batch[0]
        try:
            if loaded.run is not None:
                loaded.threads.do(self._run, self._ran)
                return
            if loaded.forward is not None:
                cancel = loaded.forward(first, self._emit, self._finish)
            else:
                assert loaded.begin is not None
                cancel = loaded.begin(self._inputs(), first.parameters, self._emit, self._finish)
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

    def _inputs(self) -> Tensors:
        inputs = join(self.batch)
        self._joined = now()
        return inputs

    def _shares(self, outputs: Tensors) -> list[Share]:
        self._computed = now()
        made = self.owner.responses.share(outputs, self.batch)
        self._shared = now()
        return made

    # --- begun in the loop ---

    def _emit(self, outputs: Tensors) -> None:
        if not self._is_over and (self.owner.decoupled or not self._responses):
            self._answer(self._shares(outputs))

    def _finish(self, why: Refused | None) -> None:
        if self._is_over:
            return
        if self.owner.decoupled:
            self._computed = self._shared = now()
        elif why is None and not self._responses:
            why = Refused("INTERNAL", "the model returned no response")
        self._end(why)

    # --- run in a thread ---

    def _run(self) -> list[Share] | None:
        """Return the responses that are not sent yet."""
        self._began, run = now(), self.instance.run
        assert run is not None
        outputs = run(self._inputs(), self.batch[0].parameters)
        if isinstance(outputs, dict):
            return self._shares(outputs)
        self._iterate(outputs)
        self._computed = self._shared = now()
        return None

    def _iterate(self, responses: Iterator[Tensors]) -> None:
        """Send the responses of a decoupled model as they come; closed after the first one that no request wants."""
        room = threading.Semaphore(_AHEAD)
        try:
            for outputs in responses:
                if self._is_unwanted():
                    break
                room.acquire()
                made = self.owner.responses.share(outputs, self.batch)
                with suppress(RuntimeError):  # the loop is closed
                    self.owner.loop.call_soon_threadsafe(self._answer, made, room)
        finally:
            if close := getattr(responses, "close", None):
                close()

    def _ran(self, made: list[Share] | None, error: BaseException | None) -> None:
        if made:
            self._answer(made)
        self._end(None if error is None else reason(error))

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

    def _end(self, why: Refused | None) -> None:
        self._is_over, self._cancel = True, None
        compute = self._joined - self._began, self._computed - self._joined, self._shared - self._computed
        for inference in self.batch:
            if inference.is_over:
                continue
            if why is None:
                self.owner.succeeded(inference, compute)
            else:
                self.owner.failed(inference, why)
        self.owner.executed(self, compute if why is None else None)
