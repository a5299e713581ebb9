"""Checks a model's outputs against its configuration, and prepares what a request wants of them: the requested outputs
as tensors, as classes, or in shared memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.serve.models.checks import fits
from inferometer.serve.models.shared_memory import RegionSlice
from inferometer.serve.models.types import Inference, ModelSignature, Output, Refused, Tensors
from inferometer.tensors import Tensor, TensorSpec, from_numpy, shown, to_numpy

Labels = Mapping[str, Sequence[str]]


def check(tensors: Tensors, specs: Sequence[TensorSpec], rows: int | None) -> None:
    """Check that each output is as configured and has the batch's rows (None: the model does not support batches)."""
    known = 0
    for spec in specs:
        tensor = tensors.get(spec.name)
        if tensor is None:
            continue
        known += 1
        name, shape = spec.name, tensor.shape
        if rows is not None and (not shape or shape[0] != rows):
            raise Refused(
                "INTERNAL",
                f"output '{name}' has the shape {shown(shape)}: the first dimension must be the batch size, {rows}",
            )
        if not fits(shape, spec.shape):
            raise Refused(
                "INTERNAL",
                f"the model returned output '{name}' with shape {shown(shape)}; its configuration says {shown(spec.shape)}",
            )
    if known < len(tensors):
        names = {spec.name for spec in specs}
        other = next(name for name in tensors if name not in names)
        raise Refused("INTERNAL", f"the model returned an output '{other:.60}' that its configuration does not list")


def check_complete(tensors: Tensors, inference: Inference, facts: ModelSignature) -> None:
    """Check that all outputs are there; a request may name fewer, and one that omitted inputs may miss some."""
    if inference.wanted or len(inference.inputs) < len(facts.inputs):
        return
    missing = [spec.name for spec in facts.outputs if spec.name not in tensors]
    raise Refused(
        "INTERNAL",
        f"the model did not return output {', '.join(repr(name) for name in missing)}, which its configuration lists",
    )


def select(tensors: Tensors, inference: Inference, labels: Labels, batched: bool) -> tuple[Output, ...]:
    if not inference.wanted:
        return tuple([Output(tensor) for tensor in tensors.values()])
    made = []
    for each in inference.wanted:
        tensor = tensors.get(each.name)
        if tensor is None:
            raise Refused("INTERNAL", f"the model did not return output '{each.name}', which was requested")
        if each.classes > 0:
            tensor = classify(tensor, each.classes, labels.get(each.name, ()), batched)
        elif each.placed is not None:
            tensor = _place(tensor, inference.memory[each.name])
        made.append(Output(tensor, each))
    return tuple(made)


def classify(tensor: Tensor, classes: int, labels: Sequence[str], batched: bool) -> Tensor:
    """Return the best classes of each row, best first, as "value:index:label"; without the label if there is none."""
    values = to_numpy(tensor)
    rows = values.reshape(values.shape[0], -1) if batched and values.ndim else values.reshape(1, -1)
    best = min(classes, rows.shape[1])
    found = [_named(row, index, labels) for row in rows for index in _order(row)[:best].tolist()]
    shape = (rows.shape[0], best) if batched else (best,)
    made = np.empty(len(found), dtype=object)
    made[:] = found
    return from_numpy(tensor.name, made.reshape(shape), "BYTES")


def _order(row: NDArray[Any]) -> NDArray[Any]:
    """Return indices in descending order of their values; equal values in their order, NaN last."""
    if row.dtype.kind == "f":
        return np.argsort(-row, kind="stable")
    return row.size - 1 - np.argsort(row[::-1], kind="stable")[::-1]


def _named(row: NDArray[Any], index: int, labels: Sequence[str]) -> str:
    value = row[index]
    shown = f"{float(value):f}" if row.dtype.kind == "f" else str(int(value))
    return f"{shown}:{index}:{labels[index]}" if index < len(labels) else f"{shown}:{index}"


def _place(tensor: Tensor, place: RegionSlice) -> Tensor:
    size = len(tensor.data)
    if size > place.byte_size:
        raise Refused(
            "INTERNAL",
            f"shared memory size specified with the request for output '{tensor.name}' ({place.byte_size} bytes) should be "
            f"at least {size} bytes to hold the results",
        )
    place.write(tensor.data)
    return Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
