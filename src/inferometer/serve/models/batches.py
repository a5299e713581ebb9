"""Joins requests into a batch, and splits the batch's outputs again.

Tensors are row-major bytes, so a batch is the concatenation of its requests. A single request is not copied, and the
parts of a split are views.
"""

import struct
from collections.abc import Iterator, Sequence

from inferometer.serve.models.types import Inference, Refused, Tensors
from inferometer.tensors import Tensor

_LENGTH = struct.Struct("<I")


def join(batch: Sequence[Inference]) -> Tensors:
    """Return the joined inputs of requests with the same names, datatypes and shapes except for the rows."""
    first = batch[0].inputs
    if len(batch) == 1:
        return first
    rows = sum(inference.rows for inference in batch)
    return {
        name: Tensor(
            name,
            tensor.datatype,
            (rows, *tensor.shape[1:]),
            b"".join([inference.inputs[name].data for inference in batch]),
        )
        for name, tensor in first.items()
    }


def split(outputs: Tensors, rows: Sequence[int]) -> list[Tensors]:
    """Return each request's part of the outputs, by its rows, which add up to the outputs' first dimension."""
    shares: list[Tensors] = [{} for _ in rows]
    for name, tensor in outputs.items():
        pieces = _strings(tensor, rows) if tensor.datatype == "BYTES" else _even(tensor, rows)
        for share, count, piece in zip(shares, rows, pieces, strict=True):
            share[name] = Tensor(name, tensor.datatype, (count, *tensor.shape[1:]), piece)
    return shares


def _even(tensor: Tensor, rows: Sequence[int]) -> Iterator[memoryview]:
    view, place = memoryview(tensor.data), 0
    size = len(view) // tensor.shape[0]
    for count in rows:
        yield view[place : place + count * size]
        place += count * size


def _strings(tensor: Tensor, rows: Sequence[int]) -> Iterator[memoryview]:
    view, place = memoryview(tensor.data), 0
    each = 1
    for size in tensor.shape[1:]:
        each *= size
    for count in rows:
        begin = place
        try:
            for _ in range(count * each):
                place += 4 + _LENGTH.unpack_from(view, place)[0]
        except struct.error:
            place = len(view) + 1
        if place > len(view):
            raise Refused("INTERNAL", f"output '{tensor.name}' has fewer strings than its shape requires")
        yield view[begin:place]
