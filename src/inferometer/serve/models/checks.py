"""Checks a request against the model before it is queued; the messages are Triton's, with the expected and the actual
value appended where Triton omits them.

`check` is always fast: it remembers the names, datatypes and shapes that were valid. `read` does the rest, in a thread if
there is much to do: it reads inputs from shared memory, and walks lists of strings one by one.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.models.types import Inference, ModelSignature, Refused
from inferometer.serve.offload import COPIED, STRING
from inferometer.tensors import DATATYPES, Tensor

_NOT_FOR_THE_MODEL = frozenset({"binary_data_output", "priority", "timeout", "triton_enable_empty_final_response"})
"""Parameters for the server: requests may share a batch even if they differ in these."""
_LENGTH = struct.Struct("<I")


class Taken:
    """A model's inputs and outputs, prepared for checking requests."""

    def __init__(self, model: str, max_batch: int, facts: ModelSignature, is_keyed: bool) -> None:
        self.model, self.max_batch = model, max_batch
        """The maximum is 0 if the model does not support batches."""
        self.inputs, self.outputs = ({spec.name: spec for spec in specs} for specs in (facts.inputs, facts.outputs))
        self.required = frozenset(spec.name for spec in facts.inputs if not spec.optional)
        self.has_strings = any(spec.datatype == "BYTES" for spec in facts.inputs)
        """Whether an input is BYTES, whose size does not follow from its shape."""
        self.is_keyed = is_keyed
        """Whether requests may be joined, so that `Inference.key` is needed."""
        self.known: BoundedCache[Any, tuple[int, Any]] = BoundedCache(1024)
        """The rows and the key for valid names, datatypes, shapes and sizes."""


def check(inference: Inference, model: Taken) -> bool:
    """Set `rows` and `key`, or raise Refused. Return False if `read` has to read or check the inputs, too."""
    inputs, signature, known = inference.inputs, None, None
    is_whole = not model.has_strings and not inference.unread
    if is_whole:
        signature = inference.signature or tuple(
            [(name, one.datatype, one.shape, len(one.data)) for name, one in inputs.items()]
        )
        known = model.known.get(signature)
    if known is None:
        rows = _check_inputs(inference, model)
        shapes = tuple(sorted([(name, one.shape[1:]) for name, one in inputs.items()])) if model.is_keyed else None
        known = rows, shapes
        if signature is not None:
            model.known.keep(signature, known)
    inference.rows = known[0]
    if inference.wanted:
        _check_outputs(inference, model)
    if model.is_keyed:
        given = sorted(inference.parameters.items()) if inference.parameters else ()
        # With the type: True equals 1, but a model may treat them differently.
        inference.key = known[1], [(name, type(one), one) for name, one in given if name not in _NOT_FOR_THE_MODEL]
    return is_whole


def work(inference: Inference) -> int:
    """Return the size of the work of `read`."""
    size: int = sum(unread.byte_size for unread in inference.unread.values())
    strings = [math.prod(one.shape) for one in inference.inputs.values() if one.datatype == "BYTES"]
    return max(-(-size // COPIED), *(STRING * count for count in strings), 0)


def read(inference: Inference, model: Taken) -> None:
    """Read the inputs that are in shared memory, and check strings; raises Refused."""
    for name, unread in inference.unread.items():
        if inference.is_over:  # it was cancelled meanwhile
            return
        tensor = inference.inputs[name]
        inference.inputs[name] = Tensor(name, tensor.datatype, tensor.shape, unread.read())
    inference.unread = {}
    for tensor in inference.inputs.values():
        if tensor.datatype == "BYTES":
            _check_strings(inference, model, tensor)


# --- inputs ----------------------------------------------------------------------------------------------------------


def _check_inputs(inference: Inference, model: Taken) -> int:
    """Return the rows."""
    if not (model.required <= inference.inputs.keys() <= model.inputs.keys()):
        _wrong_names(inference, model)
    rows = 0
    for name, tensor in inference.inputs.items():
        spec, shape, unread = model.inputs[name], tensor.shape, inference.unread.get(name)
        if tensor.datatype != spec.datatype:
            words = f"inference input '{name}' data-type is '{tensor.datatype}'"
            _refuse(inference, f"{words}, but model '{model.model}' expects '{spec.datatype}'")
        if not fits(shape, spec.shape):
            words = f"unexpected shape for input '{name}' for model '{model.model}'"
            _refuse(inference, f"{words}. Expected {_shown(spec.shape)}, got {_shown(shape)}")
        size = len(tensor.data) if unread is None else unread.byte_size
        expected = math.prod(shape) * DATATYPES[tensor.datatype].size
        if tensor.datatype != "BYTES" and size != expected:  # the size of BYTES does not follow from the shape
            words = f"input byte size mismatch for input '{name}' for model '{model.model}'"
            _refuse(inference, f"{words}. Expected {expected}, got {size}")
        if not model.max_batch:
            continue
        if rows and shape[0] != rows:
            words = f"input '{name}' batch size does not match other inputs for '{model.model}'"
            _refuse(inference, f"{words}: expected {rows}, got {shape[0]}")
        rows = shape[0]
        if not 1 <= rows <= model.max_batch:
            bound = f"<= {model.max_batch}" if rows else ">= 1"
            _refuse(inference, f"inference request batch-size must be {bound} for '{model.model}', got {rows}")
    return rows or 1


def _wrong_names(inference: Inference, model: Taken) -> NoReturn:
    given, of_model = inference.inputs, f"model '{model.model}'"
    if unknown := [name for name in given if name not in model.inputs]:
        words = f"unexpected inference input '{unknown[0]}' for {of_model}, which has {_quoted(model.inputs)}"
        raise Refused("INVALID_ARGUMENT", words)
    words = f"expected {len(model.inputs)} inputs but got {len(given)} inputs for {of_model}. Got input(s) [{_quoted(given)}]"
    missing = _quoted(name for name in model.inputs if name in model.required and name not in given)
    _refuse(inference, f"{words}, but missing required input(s) [{missing}]. Please provide all required input(s).")


def fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether each size equals the expected one, or the expected one is -1."""
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(size >= 0 and want in (-1, size) for size, want in pairs)


def _check_strings(inference: Inference, model: Taken, tensor: Tensor) -> None:
    """Check that there are as many strings, each after its length, as the shape says."""
    at, found, end, expected = 0, 0, len(tensor.data), math.prod(tensor.shape)
    while at + 4 <= end and found <= expected:
        at += 4 + _LENGTH.unpack_from(tensor.data, at)[0]
        if at <= end:
            found += 1
    if found != expected or at != end:
        where = f"for inference input '{tensor.name}' for model '{model.model}'"
        _refuse(inference, f"unexpected number of string elements {found} {where}, expecting {expected} in {end} bytes")


# --- outputs ---------------------------------------------------------------------------------------------------------


def _check_outputs(inference: Inference, model: Taken) -> None:
    for each in inference.wanted:
        if each.name not in model.outputs:
            words = f"unexpected inference output '{each.name}' for model '{model.model}'"
            raise Refused("INVALID_ARGUMENT", f"{words}, which has {_quoted(model.outputs)}")


# --- messages --------------------------------------------------------------------------------------------------------


def _refuse(inference: Inference, message: str) -> NoReturn:
    raise Refused("INVALID_ARGUMENT", named(inference, message))


def named(inference: Inference, message: str) -> str:
    return f"[request id: {inference.id or '<id_unknown>'}] {message}"


def _shown(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name}'" for name in names)
