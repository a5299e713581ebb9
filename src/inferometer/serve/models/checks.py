"""Checks a request against the model before it is queued; the messages are Triton's, with the expected and the actual
value appended where Triton omits them.

`check` is always fast. Slow checks are left to `read`, which runs in a thread if `takes_long` says so: long lists of
strings have to be walked one by one, and large inputs may still be in shared memory.
"""

import math
import struct
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import NoReturn

import msgspec

from inferometer.serve.models.shared_memory import AT_ONCE
from inferometer.serve.models.types import Inference, ModelSignature, Refused, Tensors, Wanted
from inferometer.tensors import DATATYPES, Tensor, TensorSpec

NOT_FOR_THE_MODEL = frozenset(
    {
        "binary_data_output",
        "priority",
        "timeout",
        "triton_enable_empty_final_response",
    }
)
"""Parameters for the server: requests may share a batch even if they differ in these."""
MANY = 4096
"""Strings that are checked without a thread: about 2 ms of work."""
_LENGTH = struct.Struct("<I")
_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class Taken(msgspec.Struct, frozen=True):
    """A model's inputs and outputs, prepared for checking requests."""

    model: str
    max_batch: int
    """0 if the model does not support batches."""
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    required: frozenset[str]
    keyed: bool
    """Whether requests may be joined, so that `Inference.key` is needed."""


def taken(model: str, max_batch: int, facts: ModelSignature, keyed: bool) -> Taken:
    return Taken(
        model=model,
        max_batch=max_batch,
        inputs={spec.name: spec for spec in facts.inputs},
        outputs={spec.name: spec for spec in facts.outputs},
        required=frozenset(spec.name for spec in facts.inputs if not spec.optional),
        keyed=keyed,
    )


def check(inference: Inference, model: Taken) -> bool:
    """Set `rows` and `key`, or raise Refused. Return False if `read` has to check the inputs, too."""
    inputs, specs = inference.inputs, model.inputs
    if not (model.required <= inputs.keys() <= specs.keys()):
        _wrong_names(inference, model)
    rows, is_whole = 0, not inference.unread
    for name, tensor in inputs.items():
        is_whole &= _check_one(inference, model, tensor, specs[name])
        if not model.max_batch:
            continue
        given = tensor.shape[0]
        if rows and given != rows:
            words = f"input '{name}' batch size does not match other inputs for '{model.model}'"
            _refuse(inference, f"{words}: expected {rows}, got {given}")
        rows = given
    if rows > model.max_batch > 0:
        _refuse(inference, f"inference request batch-size must be <= {model.max_batch} for '{model.model}', got {rows}")
    inference.rows = rows or 1
    if inference.wanted:
        _check_outputs(inference, model)
    if model.keyed:
        inference.key = _key(inference)
    return is_whole


def takes_long(inference: Inference) -> bool:
    """Whether `read` takes long for this request, which `check` found to need it."""
    sizes = [unread.size for unread in inference.unread.values()]
    return (
        min(sizes, default=0) < 0
        or sum(sizes) > AT_ONCE
        or any(tensor.datatype == "BYTES" and math.prod(tensor.shape) > MANY for tensor in inference.inputs.values())
    )


def read(inference: Inference, model: Taken) -> Tensors:
    """Return the inputs, all read and checked, or raise Refused. The request is not modified."""
    inputs = dict(inference.inputs)
    for name, unread in inference.unread.items():
        tensor = inputs[name]
        inputs[name] = Tensor(name, tensor.datatype, tensor.shape, unread.read())
        _check_size(inference, model, inputs[name], len(inputs[name].data))
    for tensor in inputs.values():
        if tensor.datatype == "BYTES":
            _check_strings(inference, model, tensor)
    return inputs


def _check_one(inference: Inference, model: Taken, tensor: Tensor, spec: TensorSpec) -> bool:
    """Return False if there is more to check."""
    shape = tensor.shape
    if tensor.datatype != spec.datatype:
        _refuse(
            inference,
            f"inference input '{spec.name}' data-type is '{tensor.datatype}', but model '{model.model}' expects "
            f"'{spec.datatype}'",
        )
    if not fits(shape, spec.shape):
        note = f". {_BATCH_NOTE}" if model.max_batch else ""
        _refuse(
            inference,
            f"unexpected shape for input '{spec.name}' for model '{model.model}'. Expected {_shown(spec.shape)}, got "
            f"{_shown(shape)}{note}",
        )
    if model.max_batch and shape[0] < 1:
        _refuse(inference, f"inference request batch-size must be >= 1 for '{model.model}', got {shape[0]}")
    if inference.unread and spec.name in inference.unread:
        _check_size(inference, model, tensor, inference.unread[spec.name].size)
        return False
    if spec.datatype == "BYTES" and math.prod(shape) <= MANY:
        _check_strings(inference, model, tensor)
        return True
    _check_size(inference, model, tensor, len(tensor.data))
    return spec.datatype != "BYTES"


def _check_size(inference: Inference, model: Taken, tensor: Tensor, given: int) -> None:
    """Check `given` bytes; -1 if not known yet."""
    expected, size = math.prod(tensor.shape), DATATYPES[tensor.datatype].size
    if given < 0:
        return
    if size and expected * size != given:
        _refuse(
            inference,
            f"input byte size mismatch for input '{tensor.name}' for model '{model.model}'. Expected {expected * size}, "
            f"got {given}",
        )
    if not size and expected > MANY and expected * _LENGTH.size > given:  # each string has at least a length prefix
        _refuse(
            inference,
            f"unexpected number of string elements for inference input '{tensor.name}' for model '{model.model}', expecting "
            f"{expected}: {given} bytes hold at most {given // _LENGTH.size}",
        )


def fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether each size equals the expected one, or the expected one is -1."""
    if len(shape) != len(expected):
        return False
    for i, size in enumerate(shape):  # noqa: SIM110  (a generator costs more than what it looks at, and so does zip)
        if size < 0 or size != expected[i] != -1:
            return False
    return True


def _check_strings(inference: Inference, model: Taken, tensor: Tensor) -> None:
    data, place, found = tensor.data, 0, 0
    expected, end = math.prod(tensor.shape), len(tensor.data)
    where = f"for inference input '{tensor.name}'"
    while place < end and found <= expected:
        if place + 4 > end:
            _refuse(
                inference,
                f"incomplete string length indicator {where} for model '{model.model}', expecting 4 bytes but only "
                f"{end - place} bytes available. Please make sure the string length indicator is in one buffer.",
            )
        (size,) = _LENGTH.unpack_from(data, place)
        place += 4
        if place + size > end:
            _refuse(
                inference,
                f"incomplete string data {where}, expecting string of length {size} but only {end - place} bytes available",
            )
        place += size
        found += 1
        if not found % MANY and inference.is_over:
            return  # the request was cancelled
    if found != expected:
        more = " or more" if place < end else ""
        _refuse(
            inference,
            f"unexpected number of string elements {found}{more} {where} for model '{model.model}', expecting {expected}",
        )


def _check_outputs(inference: Inference, model: Taken) -> None:
    wanted: dict[str, Wanted] = {}
    for each in inference.wanted:
        spec = model.outputs.get(each.name)
        if spec is None:
            words = f"unexpected inference output '{each.name}' for model '{model.model}'"
            raise Refused("INVALID_ARGUMENT", f"{words}, which has {_few(model.outputs)}")
        if each.classes > 0 and each.placed is not None:
            raise Refused("INVALID_ARGUMENT", "Output can't set both 'shared_memory_region' and 'classification'")
        if each.classes > 0 and spec.datatype == "BYTES":
            _refuse(inference, f"classification is not possible for output '{each.name}': its data-type is 'BYTES'")
        wanted[each.name] = each
    inference.wanted = tuple(wanted.values())


def _wrong_names(inference: Inference, model: Taken) -> NoReturn:
    given = inference.inputs
    missing = [name for name in model.inputs if name in model.required and name not in given]
    unknown = next((name for name in given if name not in model.inputs), None)
    if unknown is not None and len(given) <= len(model.inputs):
        words = f"unexpected inference input '{unknown}' for model '{model.model}'"
        raise Refused("INVALID_ARGUMENT", f"{words}, which has {_few(model.inputs)}")
    _refuse(
        inference,
        f"expected {len(model.inputs)} inputs but got {len(given)} inputs for model '{model.model}'. Got input(s) "
        f"[{_quoted(given)}], but missing required input(s) [{_quoted(missing)}]. Please provide all required input(s)."
        + (f" The model has {_few(model.inputs)}." if unknown is not None else ""),
    )


def _key(inference: Inference) -> object:
    parameters = inference.parameters
    words = (
        tuple(sorted((name, value) for name, value in parameters.items() if name not in NOT_FOR_THE_MODEL))
        if parameters
        else ()
    )
    return tuple(sorted([(name, tensor.shape[1:]) for name, tensor in inference.inputs.items()])), words


def _refuse(inference: Inference, message: str) -> NoReturn:
    raise Refused("INVALID_ARGUMENT", named(inference, message))


def named(inference: Inference, message: str) -> str:
    return f"[request id: {inference.id or '<id_unknown>'}] {message}"


def _shown(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape[:16]))}{',...' if len(shape) > 16 else ''}]"


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name}'" for name in names)


def _few(names: Collection[str]) -> str:
    return (_quoted(islice(names, 16)) + (",..." if len(names) > 16 else "")) or "none"
