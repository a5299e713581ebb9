"""A model's inputs and outputs: checks requests before they are queued, and makes the responses of what the model returns.

The messages for requests are Triton's, with the expected and the actual value appended where Triton omits them. Checks of
requests and of outputs remember the names, datatypes and shapes that were valid, which makes them fast.

Each request gets the outputs that it wants: as tensors, as classes, or in shared memory.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.models import configs
from inferometer.serve.models.types import Inference, Refused, Tensors, TextPart, reason
from inferometer.serve.offload import COPIED, STRING
from inferometer.tensors import DATATYPES, Tensor, from_numpy, shown, to_numpy

Share = tuple[Tensor, ...] | TextPart | Refused
"""What a request gets of a batch's outputs: a tuple of tensors, or why it gets none. Text requests get a TextPart."""
_NOT_FOR_THE_MODEL = frozenset({"binary_data_output", "priority", "timeout", "triton_enable_empty_final_response"})
"""Parameters for the server: requests may share a batch even if they differ in these."""
_LENGTH = struct.Struct("<I")


class ModelSignature:
    """The inputs and outputs in a model's configuration. `is_keyed`: whether requests may be joined, so that they need
    `Inference.key`. `labels` are those of the classes of outputs."""

    def __init__(self, config: Any, is_keyed: bool, labels: Mapping[str, Sequence[str]]) -> None:
        self.inputs, self.outputs = configs.specs(config)
        self._model, self._max_batch = config.name, config.max_batch_size
        self._is_keyed, self._labels, self._is_decoupled = is_keyed, labels, config.model_transaction_policy.decoupled
        self._required = frozenset(name for name, spec in self.inputs.items() if not spec.optional)
        self._has_strings = any(spec.datatype == "BYTES" for spec in self.inputs.values())
        """Whether an input is BYTES, whose size does not follow from its shape."""
        self._valid_inputs: BoundedCache[Any, tuple[int, Any]] = BoundedCache(1024)
        """The rows and the key for valid names, datatypes, shapes and sizes."""
        self._valid_outputs: BoundedCache[Any, bool] = BoundedCache(1024)

    # --- requests ---

    def check(self, inference: Inference) -> bool:
        """Set `rows` and `key`, or raise Refused. Return False if `read` has to read or check the inputs, too."""
        inputs, signature, known = inference.inputs, None, None
        is_whole = not self._has_strings and not inference.unread
        if is_whole:
            signature = inference.signature or tuple(
                [(name, one.datatype, one.shape, len(one.data)) for name, one in inputs.items()]
            )
            known = self._valid_inputs.get(signature)
        if known is None:
            rows = self._check_inputs(inference)
            shapes = tuple(sorted([(name, one.shape[1:]) for name, one in inputs.items()])) if self._is_keyed else None
            known = rows, shapes
            if signature is not None:
                self._valid_inputs.keep(signature, known)
        inference.rows = known[0]
        for each in inference.wanted:
            if each.name not in self.outputs:
                words = f"unexpected inference output '{each.name}' for model '{self._model}'"
                raise Refused("INVALID_ARGUMENT", f"{words}, which has {_quoted(self.outputs)}")
            if each.classes and self.outputs[each.name].datatype == "BYTES":
                _refuse(inference, f"classification is not possible for output '{each.name}': its data-type is 'BYTES'")
        if self._is_keyed:
            given = sorted(inference.parameters.items()) if inference.parameters else ()
            # With the type: True equals 1, but a model may treat them differently.
            inference.key = known[1], [(name, type(one), one) for name, one in given if name not in _NOT_FOR_THE_MODEL]
        return is_whole

    def read(self, inference: Inference) -> None:
        """Read inputs that are in shared memory, and walk lists of strings; in any thread. Raises Refused."""
        for name, unread in inference.unread.items():
            if inference.is_over:  # it was cancelled meanwhile
                return
            tensor = inference.inputs[name]
            inference.inputs[name] = Tensor(name, tensor.datatype, tensor.shape, unread.read())
        inference.unread = {}
        for name, tensor in inference.inputs.items():
            if tensor.datatype != "BYTES":
                continue
            at, found, end, expected = 0, 0, len(tensor.data), math.prod(tensor.shape)
            while at + 4 <= end and found <= expected:
                at += 4 + _LENGTH.unpack_from(tensor.data, at)[0]
                if at <= end:
                    found += 1
            if found != expected or at != end:
                where = f"for inference input '{name}' for model '{self._model}', expecting {expected} in {end} bytes"
                _refuse(inference, f"unexpected number of string elements {found} {where}")

    def _check_inputs(self, inference: Inference) -> int:
        """Return the rows."""
        if not (self._required <= inference.inputs.keys() <= self.inputs.keys()):
            self._wrong_names(inference)
        rows = 0
        for name, tensor in inference.inputs.items():
            spec, shape, unread = self.inputs[name], tensor.shape, inference.unread.get(name)
            if tensor.datatype != spec.datatype:
                words = f"inference input '{name}' data-type is '{tensor.datatype}'"
                _refuse(inference, f"{words}, but model '{self._model}' expects '{spec.datatype}'")
            if not _fits(shape, spec.shape):
                expected, given = (",".join(map(str, each)) for each in (spec.shape, shape))
                words = f"unexpected shape for input '{name}' for model '{self._model}'"
                _refuse(inference, f"{words}. Expected [{expected}], got [{given}]")
            size = len(tensor.data) if unread is None else unread.byte_size
            needed = math.prod(shape) * DATATYPES[tensor.datatype].size
            if tensor.datatype != "BYTES" and size != needed:  # the size of BYTES does not follow from the shape
                words = f"input byte size mismatch for input '{name}' for model '{self._model}'"
                _refuse(inference, f"{words}. Expected {needed}, got {size}")
            if not self._max_batch:  # it does not support batches
                continue
            if rows and shape[0] != rows:
                words = f"input '{name}' batch size does not match other inputs for '{self._model}'"
                _refuse(inference, f"{words}: expected {rows}, got {shape[0]}")
            rows = shape[0]
            if not 1 <= rows <= self._max_batch:
                bound = f"<= {self._max_batch}" if rows else ">= 1"
                _refuse(inference, f"inference request batch-size must be {bound} for '{self._model}', got {rows}")
        return rows or 1

    def _wrong_names(self, inference: Inference) -> NoReturn:
        given, expected, of_model = inference.inputs, self.inputs, f"model '{self._model}'"
        if unknown := [name for name in given if name not in expected]:
            words = f"unexpected inference input '{unknown[0]}' for {of_model}, which has {_quoted(expected)}"
            raise Refused("INVALID_ARGUMENT", words)
        words = f"expected {len(expected)} inputs but got {len(given)} inputs for {of_model}. Got input(s) [{_quoted(given)}]"
        missing = _quoted(name for name in expected if name in self._required and name not in given)
        _refuse(inference, f"{words}, but missing required input(s) [{missing}]. Please provide all required input(s).")

    # --- responses ---

    def share(self, outputs: Tensors, batch: list[Inference]) -> list[Share]:
        """Return each request's outputs as it wants them, or why it gets none; in any thread."""
        rows = [inference.rows for inference in batch]
        try:
            self.check_outputs(outputs, sum(rows))
            parts = [outputs] if len(batch) == 1 else split(outputs, rows)
        except Exception as error:
            return [reason(error)] * len(batch)
        shares: list[Share] = []
        for part, inference in zip(parts, batch, strict=True):
            try:
                shares.append(self.chosen(part, inference))
            except Exception as error:
                shares.append(reason(error))
        return shares

    def check_outputs(self, outputs: Tensors, rows: int) -> None:
        """Raise Refused unless each output is as configured and, if the model supports batches, has the batch's rows."""
        key: list[Any] = [rows]
        for name, tensor in outputs.items():
            key += (name, tensor.shape)
        shapes = tuple(key)
        if shapes in self._valid_outputs:
            return
        for name, tensor in outputs.items():
            what = f"the model returned output '{name:.60}' with shape {shown(tensor.shape)}"
            spec = self.outputs.get(name)
            if spec is None:
                raise Refused("INTERNAL", f"{what}, which its configuration does not list")
            if self._max_batch and tensor.shape[:1] != (rows,):
                raise Refused("INTERNAL", f"{what}: the first dimension must be the batch size, {rows}")
            if not _fits(tensor.shape, spec.shape):
                raise Refused("INTERNAL", f"{what}; its configuration says {shown(spec.shape)}")
        self._valid_outputs.keep(shapes, True)

    def chosen(self, outputs: Tensors, inference: Inference) -> tuple[Tensor, ...]:
        """Return the outputs of one request as it wants them, or raise why it gets none."""
        if not inference.wanted:
            # A request that omitted inputs may miss outputs.
            is_whole = not self._is_decoupled and len(inference.inputs) >= len(self.inputs)
            if len(outputs) < len(self.outputs) and is_whole:
                missing = ", ".join([repr(name) for name in self.outputs if name not in outputs])
                raise Refused("INTERNAL", f"the model did not return output {missing}, which its configuration lists")
            return tuple(outputs.values())
        made = []
        for each in inference.wanted:
            tensor = outputs.get(each.name)
            if tensor is None:
                raise Refused("INTERNAL", f"the model did not return output '{each.name}', which was requested")
            if each.classes > 0:
                tensor = classify(tensor, each.classes, self._labels.get(each.name, ()), self._max_batch > 0)
            elif each.placed is not None:
                each.placed.write(tensor)
                tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
            made.append(tensor)
        return tuple(made)


def work(inference: Inference) -> int:
    """Return the size of the work of `ModelSignature.read`."""
    size: int = sum(unread.byte_size for unread in inference.unread.values())
    strings = [math.prod(one.shape) for one in inference.inputs.values() if one.datatype == "BYTES"]
    return max(-(-size // COPIED), *(STRING * count for count in strings), 0)


def named(inference: Inference, message: str) -> str:
    return f"[request id: {inference.id or '<id_unknown>'}] {message}"


def _refuse(inference: Inference, message: str) -> NoReturn:
    raise Refused("INVALID_ARGUMENT", named(inference, message))


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name}'" for name in names)


def _fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether each size equals the expected one, or the expected one is -1."""
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(size >= 0 and want in (-1, size) for size, want in pairs)


def join(batch: Sequence[Inference]) -> Tensors:
    """Return the joined inputs of requests with the same names, datatypes and shapes except for the rows: tensors are
    row-major, so their bytes are concatenated. A single request is not copied."""
    first = batch[0].inputs
    if len(batch) == 1:
        return first
    rows = sum([inference.rows for inference in batch])
    joined = {name: b"".join([inference.inputs[name].data for inference in batch]) for name in first}
    return {name: Tensor(name, one.datatype, (rows, *one.shape[1:]), joined[name]) for name, one in first.items()}


def split(outputs: Tensors, rows: Sequence[int]) -> list[Tensors]:
    """Return each request's part of the outputs, a view, by its rows, which add up to the outputs' first dimension."""
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


def classify(tensor: Tensor, classes: int, labels: Sequence[str], is_batched: bool) -> Tensor:
    """Return the best classes of each row, best first, as "value:index:label"; without the label if there is none."""
    values = to_numpy(tensor)
    rows = values.reshape(values.shape[0], -1) if is_batched and values.ndim else values.reshape(1, -1)
    best, found = min(classes, rows.shape[1]), list[str]()
    for row in rows:
        order = row.size - 1 - np.argsort(row[::-1], kind="stable")[::-1]  # equal values by index
        for index in order[:best].tolist():
            value = f"{float(row[index]):f}" if row.dtype.kind == "f" else str(int(row[index]))
            found.append(f"{value}:{index}:{labels[index]}" if index < len(labels) else f"{value}:{index}")
    made = np.array(found, object).reshape((rows.shape[0], best) if is_batched else (best,))
    return from_numpy(tensor.name, made, "BYTES")
