"""Runs a batch on an instance, in the event loop or in a thread, and makes its responses.

Whatever a model raises becomes the response to the requests of its batch (INTERNAL, one line); the instance then takes
the next batch.

Tensors are row-major bytes, so a batch is the concatenation of its requests. A single request is not copied, and the
parts of a split are views. Outputs are checked against the configuration; each request gets those that it wants: as
tensors, as classes, or in shared memory.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.models.checks import fits
from inferometer.serve.models.types import Inference, Loaded, ModelSignature, Refused, Tensors, TextPart, reason
from inferometer.tensors import Tensor, from_numpy, shown, to_numpy
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.models.model import Model

Share = tuple[Tensor, ...] | TextPart | Refused
"""What a request gets of a batch's outputs: a tuple of tensors, or why it gets none. Text requests get a TextPart."""
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
            inference.started = self._began
            inference.queue_ns = self._began - inference.queued
        loaded = self.instance
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
        if not self._is_over and (self.owner.decoupled or not self._responses):
            self._computed = now()
            is_text = self.batch[0].text is not None
            self._responded([outputs] if is_text else self.owner.responses.share(outputs, self.batch))

    def _finish(self, why: Refused | None) -> None:
        if self._is_over:
            return
        self._shared = now()
        if self.owner.decoupled:
            self._began = self._joined = self.batch[0].started
            self._computed = self._shared
        elif why is None and not self._responses:
            why = Refused("INTERNAL", "the model returned no response")
        self._end(why)

    # --- run in a thread ---

    def _run(self) -> list[Share] | None:
        """Return the responses that are not sent yet."""
        self._began = self._joined = now()
        run, run_texts = self.instance.run, self.instance.run_texts
        if run_texts is not None and self.batch[0].text is not None:
            made: list[Share] = [*run_texts([inference.text for inference in self.batch])]
            self._computed = self._shared = now()
            return made
        assert run is not None
        inputs = join(self.batch)
        self._joined = now()
        outputs = run(inputs, self.batch[0].parameters)
        self._computed = now()
        if isinstance(outputs, dict):
            made = self.owner.responses.share(outputs, self.batch)
            self._shared = now()
            return made
        self._iterate(outputs)
        self._computed = self._shared = now()
        return None

    def _iterate(self, responses: Iterator[Tensors]) -> None:
        """Send the responses of a decoupled model as they come, up to the first one that no request wants."""
        room = threading.Semaphore(_AHEAD)
        for outputs in responses:
            if self._is_unwanted():
                break
            room.acquire()
            made = self.owner.responses.share(outputs, self.batch)
            with suppress(RuntimeError):  # the loop is closed
                self.owner.loop.call_soon_threadsafe(self._responded, made, room)

    def _ran(self, made: list[Share] | None, error: BaseException | None) -> None:
        if made:
            self._responded(made)
        self._end(None if error is None else reason(error))

    # --- both ---

    def _responded(self, made: list[Share], room: threading.Semaphore | None = None) -> None:
        if room is not None:
            room.release()
        t = now()
        self._responses += 1
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

    def _end(self, why: Refused | None) -> None:
        self._is_over, self._cancel = True, None
        compute = self._joined - self._began, self._computed - self._joined, self._shared - self._computed
        for inference in self.batch:
            if not inference.is_over:
                self.owner.end(inference, why, compute)
        self.owner.executed(self, compute if why is None else None)


# --- responses -------------------------------------------------------------------------------------------------------


class Responses:
    """Makes the responses of one model."""

    def __init__(
        self, facts: ModelSignature, labels: Mapping[str, Sequence[str]], is_batched: bool, is_decoupled: bool
    ) -> None:
        self._specs = {spec.name: spec for spec in facts.outputs}
        self._inputs = len(facts.inputs)
        self._labels, self._is_batched, self._is_decoupled = labels, is_batched, is_decoupled
        self._valid: BoundedCache[Any, bool] = BoundedCache(1024)
        """Combinations of shapes that are as configured."""

    def share(self, outputs: Tensors, batch: list[Inference]) -> list[Share]:
        """Return each request's outputs as it wants them, or why it gets none; in any thread."""
        rows = [inference.rows for inference in batch]
        try:
            self._check(outputs, sum(rows))
            parts = [outputs] if len(batch) == 1 else split(outputs, rows)
        except Exception as error:
            return [reason(error)] * len(batch)
        shares: list[Share] = []
        for part, inference in zip(parts, batch, strict=True):
            try:
                shares.append(self._chosen(part, inference))
            except Exception as error:
                shares.append(reason(error))
        return shares

    def one(self, outputs: Tensors, inference: Inference) -> tuple[Tensor, ...]:
        """Return the outputs of a request that was not batched with others, or raise why it gets none."""
        self._check(outputs, inference.rows)
        return self._chosen(outputs, inference)

    def _check(self, outputs: Tensors, rows: int) -> None:
        """Raise Refused unless each output is as configured and, if the model supports batches, has the batch's rows."""
        key: list[Any] = [rows]
        for name, tensor in outputs.items():
            key += (name, tensor.shape)
        shapes = tuple(key)
        if shapes in self._valid:
            return
        for name, tensor in outputs.items():
            what = f"the model returned output '{name:.60}' with shape {shown(tensor.shape)}"
            spec = self._specs.get(name)
            if spec is None:
                raise Refused("INTERNAL", f"{what}, which its configuration does not list")
            if self._is_batched and tensor.shape[:1] != (rows,):
                raise Refused("INTERNAL", f"{what}: the first dimension must be the batch size, {rows}")
            if not fits(tensor.shape, spec.shape):
                raise Refused("INTERNAL", f"{what}; its configuration says {shown(spec.shape)}")
        self._valid.keep(shapes, True)

    def _chosen(self, outputs: Tensors, inference: Inference) -> tuple[Tensor, ...]:
        if not inference.wanted:
            # A request that omitted inputs may miss outputs.
            if len(outputs) < len(self._specs) and not self._is_decoupled and len(inference.inputs) >= self._inputs:
                missing = ", ".join([repr(name) for name in self._specs if name not in outputs])
                raise Refused("INTERNAL", f"the model did not return output {missing}, which its configuration lists")
            return tuple(outputs.values())
        made = []
        for each in inference.wanted:
            tensor = outputs.get(each.name)
            if tensor is None:
                raise Refused("INTERNAL", f"the model did not return output '{each.name}', which was requested")
            if each.classes > 0:
                tensor = classify(tensor, each.classes, self._labels.get(each.name, ()), self._is_batched)
            elif each.placed is not None:
                each.placed.write(tensor)
                tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
            made.append(tensor)
        return tuple(made)


def join(batch: Sequence[Inference]) -> Tensors:
    """Return the joined inputs of requests with the same names, datatypes and shapes except for the rows."""
    first = batch[0].inputs
    if len(batch) == 1:
        return first
    rows = sum([inference.rows for inference in batch])
    joined = {name: b"".join([inference.inputs[name].data for inference in batch]) for name in first}
    return {name: Tensor(name, one.datatype, (rows, *one.shape[1:]), joined[name]) for name, one in first.items()}


def split(outputs: Tensors, rows: Sequence[int]) -> list[Tensors]:
    """Return each request's part of the outputs, by its rows, which add up to the outputs' first dimension."""
    shares: list[Tensors] = [{} for _ in rows]
    for name, tensor in outputs.items():
        view, end = memoryview(tensor.data), 0
        size, strings = len(view) // tensor.shape[0], math.prod(tensor.shape[1:])
        for share, count in zip(shares, rows, strict=True):
            begin = end
            if tensor.datatype != "BYTES":
                end += count * size
            for _ in range(count * strings if tensor.datatype == "BYTES" else 0):
                end += 4 + int.from_bytes(view[end : end + 4], "little")
            if end > len(view):
                raise Refused("INTERNAL", f"output '{tensor.name}' has fewer strings than its shape requires")
            share[name] = Tensor(name, tensor.datatype, (count, *tensor.shape[1:]), view[begin:end])
    return shares


# --- classes ---------------------------------------------------------------------------------------------------------


def classify(tensor: Tensor, classes: int, labels: Sequence[str], is_batched: bool) -> Tensor:
    """Return the best classes of each row, best first, as "value:index:label"; without the label if there is none."""
    values = to_numpy(tensor)
    rows = values.reshape(values.shape[0], -1) if is_batched and values.ndim else values.reshape(1, -1)
    best = min(classes, rows.shape[1])
    orders = [row.size - 1 - np.argsort(row[::-1], kind="stable")[::-1] for row in rows]  # equal values by index
    found = [
        _class(row, index, labels) for row, order in zip(rows, orders, strict=True) for index in order[:best].tolist()
    ]
    made = np.empty(len(found), dtype=object)
    made[:] = found
    return from_numpy(tensor.name, made.reshape((rows.shape[0], best) if is_batched else (best,)), "BYTES")


def _class(row: NDArray[Any], index: int, labels: Sequence[str]) -> str:
    value = f"{float(row[index]):f}" if row.dtype.kind == "f" else str(int(row[index]))
    return f"{value}:{index}:{labels[index]}" if index < len(labels) else f"{value}:{index}"
