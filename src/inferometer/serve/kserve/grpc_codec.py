"""Converts ModelInferRequest to the parts of an Inference, and outputs to a ModelInferResponse.

Raw contents are cut out of the request's bytes and appended to the response's bytes directly: protobuf would copy each
of them twice. Errors of the request itself are reported here, in Triton's words; `Models.submit` reports mismatches
with the model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from inferometer.errors import UserError
from inferometer.serve.kserve import grpc_typed
from inferometer.serve.kserve.grpc_fields import MOST, Field, fields, length
from inferometer.serve.kserve.messages import Message, ModelInferRequest, ModelInferResponse
from inferometer.serve.models.shared_memory import Regions
from inferometer.serve.models.types import Output, Parameter, Parameters, Placed, Refused, Tensors, Unread, Wanted
from inferometer.tensors import Tensor
from inferometer.wire.failures import bounded

T = TypeVar("T")
Raw = Sequence[bytes | memoryview]
Typed = Mapping[int, list[memoryview]]
"""Typed contents cut out of the message, by the input's index."""

_INPUT = 0x2A  # field 5, length-delimited
_RAW_INPUT = 0x3A  # field 7
_RAW_OUTPUT = 0x32  # field 6
_INFER_RESPONSE = 0x12  # field 2 of ModelStreamInferResponse
_LARGE = 16 << 10
"""Message size from which cutting is faster than protobuf's copies."""
LARGE = 64 << 10
"""Message size without raw contents from which typed contents are cut out; below, protobuf needs at most 2 ms."""
_MOST_BYTES = 1 << 20
"""Maximum size of everything else."""
_NOTHING_TYPED: Typed = {}


# --- the request's bytes ---------------------------------------------------------------------------------------------


def parse(data: bytes) -> tuple[Message, Raw, Typed]:
    """Return the request, its raw contents, and typed contents that are still to be parsed."""
    try:
        if len(data) < _LARGE:
            request = ModelInferRequest.FromString(data)
            return request, request.raw_input_contents, _NOTHING_TYPED
        rest, raw, typed = _cut(data)
        return ModelInferRequest.FromString(rest), raw, typed
    except DecodeError as error:
        raise Refused("INTERNAL", f"the message is not a valid ModelInferRequest: {bounded(str(error))}") from None


def _cut(data: bytes) -> tuple[bytes, Raw, Typed]:
    """Return the message without its raw contents (and without typed ones if it is large), and those contents."""
    view = memoryview(data)
    raw: list[memoryview] = []
    rest: list[Field] = []
    size = 0
    for field in fields(data, MOST):
        tag, begin, start, end = field
        if tag == _RAW_INPUT:
            raw.append(view[start:end])
        else:
            rest.append(field)
            size += end - begin
    if size <= LARGE:
        return b"".join([view[begin:end] for _, begin, _, end in rest]), raw, _NOTHING_TYPED
    left, typed = _cut_typed(view, rest, MOST - len(raw) - len(rest))
    if len(left) > _MOST_BYTES:
        raise Refused(
            "RESOURCE_EXHAUSTED",
            f"the request has {len(left)} bytes without its inputs' contents; the server accepts at most {_MOST_BYTES}",
        )
    return left, raw, typed


def _cut_typed(view: memoryview, rest: list[Field], most: int) -> tuple[bytes, Typed]:
    """Return the fields of `rest` without the typed contents of inputs, which have at most `most` fields, and those
    contents."""
    left: list[bytes | memoryview] = []
    typed: dict[int, list[memoryview]] = {}
    number = 0
    for tag, begin, start, end in rest:
        if tag != _INPUT:
            left.append(view[begin:end])
            continue
        one, contents, count = grpc_typed.cut(view[start:end], most)
        most -= count
        if any(contents):
            left += (_INPUT_TAG, length(sum(map(len, one))), *one)
            typed[number] = contents
        else:
            left.append(view[begin:end])
        number += 1
    return b"".join(left), typed


_INPUT_TAG = bytes((_INPUT,))


# --- inputs ----------------------------------------------------------------------------------------------------------


def inputs(request: Message, raw: Raw, typed: Typed, regions: Regions) -> tuple[Tensors, dict[str, Unread]]:
    """Return the inputs (raw, typed, or in shared memory), and those whose data is still to be read. Raw contents are
    in the order of the inputs that are not in shared memory."""
    found: Tensors = {}
    unread: dict[str, Unread] = {}
    given, count = 0, len(raw)
    for i, one in enumerate(request.inputs):
        name, datatype, shape = one.name, one.datatype, tuple(one.shape)
        placed = _placed(one.parameters, name) if one.parameters else None
        data: bytes | memoryview = b""
        if placed is not None:
            place = regions.find(placed.region, placed.byte_size, placed.offset)
            unread[name] = Unread(place.read, place.byte_size)
        elif count:
            if given == count:
                raise _invalid(
                    f"expected raw_input_contents for each input that is not in shared memory of model "
                    f"'{request.model_name}', but there are {count}: none for '{name}'"
                )
            if one.HasField("contents") or i in typed:
                raise _invalid(
                    f"contents field must not be specified when using raw_input_contents for '{name}' "
                    f"for model '{request.model_name}'"
                )
            data, given = raw[given], given + 1
        elif i in typed:
            unread[name] = Unread(
                partial(_turned, grpc_typed.raw_of_sent, name, datatype, typed[i], request.model_name)
            )
        elif filled := one.contents.ListFields():
            data = _turned(grpc_typed.raw, name, datatype, filled, request.model_name)
        elif 0 not in shape:
            raise _invalid(
                f"unable to find data for input tensor '{name}' for model '{request.model_name}' in request."
            )
        if name in found:
            raise _invalid(f"[request id: {request.id or '<id_unknown>'}] input '{name}' already exists in request")
        found[name] = Tensor(name, datatype, shape, data)
    if given < count:
        raise _invalid(
            f"there are {count} raw_input_contents, but model '{request.model_name}' is given {given} inputs that are not "
            "in shared memory"
        )
    return found, unread


def _turned(
    turn: Callable[[str, str, T], bytes | memoryview], name: str, datatype: str, contents: T, model: str
) -> bytes | memoryview:
    """Convert typed contents to raw ones."""
    try:
        return turn(name, datatype, contents)
    except grpc_typed.Mismatch as error:
        raise _invalid(
            f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type '{error}', expected "
            f"datatype '{datatype}'"
        ) from None
    except UserError as error:
        raise _invalid(f"{error.what}, the datatype of input '{name}' for model '{model}'") from None


# --- parameters ------------------------------------------------------------------------------------------------------

_KINDS = {
    "sequence_id": ("int64_param", "uint64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param", "uint64_param"),
    "triton_enable_empty_final_response": ("bool_param",),
}
_NOT_NEGATIVE = ("priority", "timeout")
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
_NO_PARAMETERS: dict[str, Parameter] = {}


def parameters(request: Message) -> Parameters:
    if not request.parameters:
        return _NO_PARAMETERS
    return {name: _parameter(name, one) for name, one in request.parameters.items()}


def _parameter(name: str, one: Message) -> Parameter:
    kind = one.WhichOneof("parameter_choice")
    if kind is None:
        raise _invalid(
            f"invalid value type for '{name}' parameter, expected int64_param, bool_param, string_param or double_param."
        )
    if name.startswith("triton_") and name != EMPTY_FINAL:
        raise _invalid(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
            f"'triton_' are allowed: {EMPTY_FINAL}"
        )
    if kind not in _KINDS.get(name, (kind,)):
        raise _invalid(f"invalid value type for '{name}' parameter, expected {_KINDS[name][0]}.")
    value: Parameter = getattr(one, kind)
    if name in _NOT_NEGATIVE and isinstance(value, int) and value < 0:
        raise _invalid(f"invalid value for '{name}', expected value >= 0.")
    return value


def _placed(parameters: Any, tensor: str) -> Placed | None:
    """Return a tensor's location in shared memory, or None."""
    if "shared_memory_region" not in parameters:
        return None
    if "shared_memory_byte_size" not in parameters:
        raise _invalid(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor}'"
        )
    region = _of_kind(parameters, "shared_memory_region", "string_param", tensor)
    size = _of_kind(parameters, "shared_memory_byte_size", "int64_param", tensor)
    offset = (
        _of_kind(parameters, "shared_memory_offset", "int64_param", tensor)
        if "shared_memory_offset" in parameters
        else 0
    )
    return Placed(region, size, offset)


def _of_kind(parameters: Any, name: str, kind: str, tensor: str) -> Any:
    if parameters[name].WhichOneof("parameter_choice") != kind:
        raise _invalid(f"invalid value type for '{name}' parameter for tensor '{tensor}', expected {kind}.")
    return getattr(parameters[name], kind)


def wanted(request: Message) -> tuple[Wanted, ...]:
    """Return the requested outputs, each once."""
    if not request.outputs:
        return ()
    found: dict[str, Wanted] = {}
    for one in request.outputs:
        found.setdefault(one.name, _wanted(one))
    return tuple(found.values())


def _wanted(one: Message) -> Wanted:
    if not one.parameters:
        return Wanted(one.name)
    placed, classes = _placed(one.parameters, one.name), 0
    if "classification" in one.parameters:
        asked = one.parameters["classification"]
        if asked.WhichOneof("parameter_choice") != "int64_param":
            raise _invalid("invalid value type for 'classification' parameter, expected int64_param")
        classes = asked.int64_param
        if classes < 0:
            raise _invalid("invalid value for 'classification' parameter, expected >= 0")
        if classes and placed is not None:
            raise _invalid(
                f"output '{one.name}': classes cannot be written to shared memory; request only one of the two"
            )
    return Wanted(one.name, classes, placed)


def _invalid(message: str) -> Refused:
    return Refused("INVALID_ARGUMENT", message)


# --- answers ---------------------------------------------------------------------------------------------------------


def head(
    model: str, version: str, id: str, outputs: Iterable[Output], times: tuple[int, int], final: bool | None = None
) -> Message:
    """Return a ModelInferResponse without its raw contents. `final` is the stream's final-response flag."""
    made = ModelInferResponse(model_name=model, model_version=version, id=id)
    said = made.parameters
    said["queue_ns"].int64_param, said["compute_ns"].int64_param = times
    if final is not None:
        said[FINAL].bool_param = final
    for output in outputs:
        tensor = output.tensor
        made.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return made


def joined(made: Message, outputs: Iterable[Output]) -> bytes:
    """Return the complete ModelInferResponse, byte for byte as protobuf would write it."""
    return b"".join(_parts(made, outputs))


def in_stream(made: Message, outputs: Iterable[Output]) -> bytes:
    """Return the same inside a ModelStreamInferResponse."""
    parts = _parts(made, outputs)
    return b"".join((bytes((_INFER_RESPONSE,)), length(sum(map(len, parts))), *parts))


def _parts(made: Message, outputs: Iterable[Output]) -> list[bytes | memoryview]:
    parts: list[bytes | memoryview] = [made.SerializeToString()]
    for output in outputs:
        data = flat(output.tensor.data)
        parts += (_RAW_OUTPUT_TAG, length(len(data)), data)
    return parts


_RAW_OUTPUT_TAG = bytes((_RAW_OUTPUT,))


def flat(data: bytes | memoryview) -> bytes | memoryview:
    """Return a view whose length is its size in bytes."""
    if isinstance(data, memoryview) and (data.itemsize != 1 or data.ndim != 1):
        return data.cast("B")
    return data
