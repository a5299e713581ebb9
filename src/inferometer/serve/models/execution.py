"""Runs a batch on an instance, in the event loop or in a thread.

Whatever a model raises becomes the response to the requests of its batch (INTERNAL, one line); the instance then takes
the next batch.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from inferometer.serve.models.signature import Share, join
from inferometer.serve.models.types import Compute, Inference, Loaded, Refused, reason
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.models.model import Model

_AHEAD = 256
"""Responses that a model may be ahead of the loop."""


class Execution:
    """One batch on one instance, from its start to the end of its last request."""

    __slots__ = ("_cancel", "_computed", "_is_over", "_joined", "batch", "instance", "owner")

    def __init__(self, owner: "Model", instance: Loaded, batch: list[Inference]) -> None:
        self.owner, self.instance, self.batch = owner, instance, batch
        self._cancel: Callable[[], None] | None = None
        self._is_over, self._joined, self._computed = False, 0, 0

    def start(self) -> None:
        t, loaded = now(), self.instance
        for inference in self.batch:
            inference.started, inference.queue_ns = t, t - inference.queued
        try:
            if loaded.run is not None:
                loaded.threads.do(self._run, self._ran)
                return
            assert loaded.begin is not None
            inputs = join(self.batch)
            self._joined = now()
            cancel = loaded.begin(inputs, self.batch[0], self._emit, self._finish)
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
            cancel()

    def _is_unwanted(self) -> bool:
        return all(inference.is_over for inference in self.batch)

    # --- begun in the loop ---

    def _emit(self, outputs: Any) -> None:
        if not self._is_over and (self.owner.decoupled or not self._computed):
            self._computed = now()
            is_text = self.batch[0].text is not None
            self._responded([outputs] if is_text else self.owner.signature.share(outputs, self.batch))

    def _finish(self, why: Refused | None) -> None:
        if self._is_over:
            return
        t, began = now(), self.batch[0].started
        if self.owner.decoupled:
            self._end(why, (0, t - began, 0))
            return
        if why is None and not self._computed:
            why = Refused("INTERNAL", "the model returned no response")
        self._end(why, (self._joined - began, self._computed - self._joined, t - self._computed))

    # --- run in a thread ---

    def _run(self) -> tuple[list[Share], Compute]:
        """Return the responses that are not sent yet."""
        began, first, run_texts = now(), self.batch[0], self.instance.run_texts
        if run_texts is not None and first.text is not None:
            texts = run_texts([inference.text for inference in self.batch])
            return [*texts], (0, now() - began, 0)
        assert self.instance.run is not None
        inputs = join(self.batch)
        joined = now()
        outputs = self.instance.run(inputs, first.parameters)
        if isinstance(outputs, dict):
            computed = now()
            made = self.owner.signature.share(outputs, self.batch)
            return made, (joined - began, computed - joined, now() - computed)
        room = threading.Semaphore(_AHEAD)
        for response in outputs:  # sent as they come, up to the first one that no request wants
            if self._is_unwanted():
                break
            room.acquire()
            made = self.owner.signature.share(response, self.batch)
            with suppress(RuntimeError):  # the loop is closed
                self.owner.loop.call_soon_threadsafe(self._responded, made, room)
        return [], (joined - began, now() - joined, 0)

    def _ran(self, result: tuple[list[Share], Compute] | None, error: BaseException | None) -> None:
        made, compute = result or ([], (0, 0, 0))
        if made:
            self._responded(made)
        self._end(None if error is None else reason(error), compute)

    # --- both ---

    def _responded(self, made: list[Share], room: threading.Semaphore | None = None) -> None:
        if room is not None:
            room.release()
        t = now()
        for inference, share in zip(self.batch, made, strict=True):
            if inference.is_over:
                continue
            if isinstance(share, Refused):
                self.owner.end(inference, share)
                self.cancel_if_unwanted()
                continue
            if not inference.compute_ns:  # the first response
                inference.compute_ns = t - inference.started
            self.owner.responded(inference, share)

    def _end(self, why: Refused | None, compute: Compute) -> None:
        self._is_over, self._cancel = True, None
        for inference in self.batch:
            if not inference.is_over:
                self.owner.end(inference, why, compute)
        self.owner.executed(self, compute if why is None else None)
