"""From a batch's requests to its inputs, and from its outputs to the responses.

Tensors are row-major bytes, so a batch is the concatenation of its requests. A single request is not copied, and the
parts of a split are views. Outputs are checked against the configuration; each request gets those that it wants: as
tensors, as classes, or in shared memory.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.serve.models.checks import fits
from inferometer.serve.models.shared_memory import RegionSlice
from inferometer.serve.models.types import Inference, ModelSignature, Output, Refused, Tensors, reason
from inferometer.tensors import Tensor, from_numpy, shown, to_numpy

Share = tuple[Output, ...] | Refused
"""What a request gets of a batch's outputs."""
_MOST = 1024
"""Combinations of shapes that are remembered as valid."""


def join(batch: Sequence[Inference]) -> Tensors:
    """Return the joined inputs of requests with the same names, datatypes and shapes except for the rows."""
    first = batch[0].inputs
    if len(batch) == 1:
        return first
    rows = sum([inference.rows for inference in batch])
    joined = {name: b"".join([inference.inputs[name].data for inference in batch]) for name in first}
    return {name: Tensor(name, one.datatype, (rows, *one.shape[1:]), joined[name]) for name, one in first.items()}


class Responses:
    """Makes the responses of one model."""

    def __init__(
        self, facts: ModelSignature, labels: Mapping[str, Sequence[str]], is_batched: bool, is_decoupled: bool
    ) -> None:
        self._specs = {spec.name: spec for spec in facts.outputs}
        self._inputs = len(facts.inputs)
        self._labels, self._is_batched, self._is_decoupled = labels, is_batched, is_decoupled
        self._valid: set[Any] = set()

    def share(self, outputs: Tensors, batch: list[Inference]) -> list[Share]:
        """Return each request's outputs as it wants them, or why it gets none; in any thread."""
        if len(batch) == 1:
            return [self.one(outputs, batch[0])]
        rows = [inference.rows for inference in batch]
        try:
            self._check(outputs, sum(rows))
            parts = split(outputs, rows)
        except Exception as error:
            return [reason(error)] * len(batch)
        return [self._chosen(part, inference) for part, inference in zip(parts, batch, strict=True)]

    def one(self, outputs: Tensors, inference: Inference) -> Share:
        """Return the outputs of a request that was not batched with others."""
        try:
            self._check(outputs, inference.rows)
        except Refused as why:
            return why
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
            spec, what = (
                self._specs.get(name),
                f"the model returned output '{name:.60}' with shape {shown(tensor.shape)}",
            )
            if spec is None:
                raise Refused("INTERNAL", f"{what}, which its configuration does not list")
            if self._is_batched and tensor.shape[:1] != (rows,):
                raise Refused("INTERNAL", f"{what}: the first dimension must be the batch size, {rows}")
            if not fits(tensor.shape, spec.shape):
                raise Refused("INTERNAL", f"{what}; its configuration says {shown(spec.shape)}")
        if len(self._valid) >= _MOST:
            self._valid.clear()
        self._valid.add(shapes)

    def _chosen(self, outputs: Tensors, inference: Inference) -> Share:
        if not inference.wanted:
            # A request that omitted inputs may miss outputs.
            if len(outputs) < len(self._specs) and not self._is_decoupled and len(inference.inputs) >= self._inputs:
                missing = ", ".join([repr(name) for name in self._specs if name not in outputs])
                return Refused("INTERNAL", f"the model did not return output {missing}, which its configuration lists")
            return tuple(map(Output, outputs.values()))
        made = []
        try:
            for each in inference.wanted:
                tensor = outputs.get(each.name)
                if tensor is None:
                    return Refused("INTERNAL", f"the model did not return output '{each.name}', which was requested")
                if each.classes > 0:
                    tensor = classify(tensor, each.classes, self._labels.get(each.name, ()), self._is_batched)
                elif each.placed is not None:
                    tensor = _place(tensor, inference.memory[each.name])
                made.append(Output(tensor, each))
        except Exception as error:
            return reason(error)
        return tuple(made)


# --- parts of a batch ------------------------------------------------------------------------------------------------


def split(outputs: Tensors, rows: Sequence[int]) -> list[Tensors]:
    """Return each request's part of the outputs, by its rows, which add up to the outputs' first dimension."""
    shares: list[Tensors] = [{} for _ in rows]
    for name, tensor in outputs.items():
        pieces = _strings(tensor, rows) if tensor.datatype == "BYTES" else _even(tensor, rows)
        for share, count, piece in zip(shares, rows, pieces, strict=True):
            share[name] = Tensor(name, tensor.datatype, (count, *tensor.shape[1:]), piece)
    return shares


def _even(tensor: Tensor, rows: Sequence[int]) -> Iterator[memoryview]:
    view, end = memoryview(tensor.data), 0
    size = len(view) // tensor.shape[0]
    for count in rows:
        begin, end = end, end + count * size
        yield view[begin:end]


def _strings(tensor: Tensor, rows: Sequence[int]) -> Iterator[memoryview]:
    view, end, per_row = memoryview(tensor.data), 0, math.prod(tensor.shape[1:])
    for count in rows:
        begin = end
        for _ in range(count * per_row):
            end += 4 + int.from_bytes(view[end : end + 4], "little")
        if end > len(view):
            raise Refused("INTERNAL", f"output '{tensor.name}' has fewer strings than its shape requires")
        yield view[begin:end]


# --- classes and shared memory ---------------------------------------------------------------------------------------


def classify(tensor: Tensor, classes: int, labels: Sequence[str], is_batched: bool) -> Tensor:
    """Return the best classes of each row, best first, as "value:index:label"; without the label if there is none."""
    values = to_numpy(tensor)
    rows = values.reshape(values.shape[0], -1) if is_batched and values.ndim else values.reshape(1, -1)
    best = min(classes, rows.shape[1])
    found = [_class(row, index, labels) for row in rows for index in _order(row)[:best].tolist()]
    made = np.empty(len(found), dtype=object)
    made[:] = found
    return from_numpy(tensor.name, made.reshape((rows.shape[0], best) if is_batched else (best,)), "BYTES")


def _order(row: NDArray[Any]) -> NDArray[Any]:
    """Return indices in descending order of their values; equal values in their order, NaN last."""
    if row.dtype.kind == "f":
        return np.argsort(-row, kind="stable")
    return row.size - 1 - np.argsort(row[::-1], kind="stable")[::-1]


def _class(row: NDArray[Any], index: int, labels: Sequence[str]) -> str:
    value = f"{float(row[index]):f}" if row.dtype.kind == "f" else str(int(row[index]))
    return f"{value}:{index}:{labels[index]}" if index < len(labels) else f"{value}:{index}"


def _place(tensor: Tensor, place: RegionSlice) -> Tensor:
    size = len(tensor.data)
    if size > place.byte_size:
        what = f"shared memory size specified with the request for output '{tensor.name}' ({place.byte_size} bytes)"
        raise Refused("INTERNAL", f"{what} should be at least {size} bytes to hold the results")
    place.write(tensor.data)
    return Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
