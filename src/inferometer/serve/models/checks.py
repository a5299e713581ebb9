"""Is a request what the model takes? Checked before it is queued; the messages are Triton's, with the expected and the given."""

import math
import struct
from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec

from inferometer.serve.models.types import Facts, Inference, Refused, Wanted
from inferometer.tensors import DATATYPES, Tensor, TensorSpec

NOT_FOR_THE_MODEL = frozenset(
    {
        "binary_data_output",
        "priority",
        "timeout",
        "triton_enable_empty_final_response",
    }
)
"""Parameters that are the server's business: requests may share a batch although they differ in these."""
_LENGTH = struct.Struct("<I")
_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class Taken(msgspec.Struct, frozen=True):
    """What a model takes and gives, laid out for the check of a request."""

    model: str
    max_batch: int
    """0: it knows no batches."""
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    required: frozenset[str]
    keyed: bool
    """Requests may be joined: `Inference.key` is wanted."""


def taken(model: str, max_batch: int, facts: Facts, keyed: bool) -> Taken:
    return Taken(
        model=model,
        max_batch=max_batch,
        inputs={spec.name: spec for spec in facts.inputs},
        outputs={spec.name: spec for spec in facts.outputs},
        required=frozenset(spec.name for spec in facts.inputs if not spec.optional),
        keyed=keyed,
    )


def check(inference: Inference, model: Taken) -> None:
    """Fills in `rows` and `key`, or raises Refused."""
    inputs, specs = inference.inputs, model.inputs
    if not (model.required <= inputs.keys() <= specs.keys()):
        _wrong_names(inference, model)
    rows = 0
    for name, tensor in inputs.items():
        _check_one(inference, model, tensor, specs[name])
        if not model.max_batch:
            continue
        given = tensor.shape[0]
        if rows and given != rows:
            _refuse(inference, f"input '{name}' batch size does not match other inputs for '{model.model}'")
        rows = given
    if rows > model.max_batch > 0:
        _refuse(inference, f"inference request batch-size must be <= {model.max_batch} for '{model.model}'")
    inference.rows = rows or 1
    if inference.wanted:
        _check_outputs(inference, model)
    if model.keyed:
        inference.key = _key(inference)


def _check_one(inference: Inference, model: Taken, tensor: Tensor, spec: TensorSpec) -> None:
    shape = tensor.shape
    if tensor.datatype != spec.datatype:
        _refuse(
            inference,
            f"inference input '{spec.name}' data-type is '{tensor.datatype}', but model '{model.model}' expects "
            f"'{spec.datatype}'",
        )
    if len(shape) != len(spec.shape) or not _fits(shape, spec.shape):
        note = f". {_BATCH_NOTE}" if model.max_batch else ""
        _refuse(
            inference,
            f"unexpected shape for input '{spec.name}' for model '{model.model}'. Expected {_shown(spec.shape)}, got "
            f"{_shown(shape)}{note}",
        )
    if model.max_batch and shape[0] < 1:
        _refuse(inference, f"inference request batch-size must be >= 1 for '{model.model}'")
    if spec.datatype == "BYTES":
        _check_strings(inference, model, tensor)
        return
    expected, given = math.prod(shape) * DATATYPES[spec.datatype].size, len(tensor.data)
    if expected != given:
        _refuse(
            inference,
            f"input byte size mismatch for input '{spec.name}' for model '{model.model}'. Expected {expected}, got {given}",
        )


def _fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    for size, wanted in zip(shape, expected, strict=True):  # noqa: SIM110  (a generator costs more than what it looks at)
        if size < 0 or wanted not in (size, -1):
            return False
    return True


def _check_strings(inference: Inference, model: Taken, tensor: Tensor) -> None:
    data, place, found = tensor.data, 0, 0
    expected, end = math.prod(tensor.shape), len(tensor.data)
    where = f"for inference input '{tensor.name}'"
    while place < end:
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
    if found != expected:
        _refuse(
            inference,
            f"unexpected number of string elements {found} {where} for model '{model.model}', expecting {expected}",
        )


def _check_outputs(inference: Inference, model: Taken) -> None:
    wanted: dict[str, Wanted] = {}
    for each in inference.wanted:
        spec = model.outputs.get(each.name)
        if spec is None:
            raise Refused("INVALID_ARGUMENT", f"unexpected inference output '{each.name}' for model '{model.model}'")
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
        raise Refused("INVALID_ARGUMENT", f"unexpected inference input '{unknown}' for model '{model.model}'")
    _refuse(
        inference,
        f"expected {len(model.inputs)} inputs but got {len(given)} inputs for model '{model.model}'. Got input(s) "
        f"[{_quoted(given)}], but missing required input(s) [{_quoted(missing)}]. Please provide all required input(s).",
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
