"""Inference of KServe v2 over gRPC: requests and responses as protobuf messages.

Requests carry tensors raw (raw_input_contents). Responses carry them raw (Triton) or in the field of their datatype (MLServer,
if the request did so). Message framing and status are the business of wire/grpc.py: here a message is the bytes in between.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import SEND_LESS, UserError
from inferometer.tensors import GRPC_MESSAGE, Tensor, check, datatype_of, elements, from_numpy, shown
from inferometer.wire import varint
from inferometer.wire.context import ShmRef
from inferometer.wire.failures import bounded
from inferometer.wire.kserve.control_requests import SERVICE
from inferometer.wire.kserve.infer import (
    InferOptions,
    InferResponse,
    Parameter,
    ShmOutput,
    region_of,
    regions,
    requested,
)

INFER = f"/{SERVICE}/ModelInfer"
STREAM_INFER = f"/{SERVICE}/ModelStreamInfer"


def _class(name: str) -> type[Any]:
    from inferometer.wire import protobuf  # noqa: PLC0415 - only gRPC needs it, and it takes long to import

    return protobuf.bundled("kserve").message(f"inference.{name}")


def _parse(name: str, data: bytes) -> Any:
    from inferometer.wire import protobuf  # noqa: PLC0415 - the same

    return protobuf.parse(_class(name), data)


# --- requests --------------------------------------------------------------------------------------------------------


def infer_request(model: str, version: str, tensors: Sequence[Tensor], options: InferOptions) -> bytes:
    """Encode a ModelInferRequest. `options.binary` has no effect: tensors are always sent raw."""
    request = _class("ModelInferRequest")(model_name=model, model_version=version, id=options.id)
    _set(request.parameters, options.parameters)
    for tensor, region in zip(tensors, regions(tensors, options), strict=True):
        field = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        _set(field.parameters, region)
        if not region:
            check(tensor)
            request.raw_input_contents.append(tensor.data)
    for name, parameters in requested(options):
        _set(request.outputs.add(name=name).parameters, parameters)
    size = request.ByteSize()
    if size > GRPC_MESSAGE:
        raise UserError(f"the request has {size} bytes; a gRPC message may have at most {GRPC_MESSAGE}", SEND_LESS)
    data: bytes = request.SerializeToString(deterministic=True)
    return data


def _set(field: Any, parameters: Mapping[str, Parameter]) -> None:
    for name, value in parameters.items():
        setattr(field[name], _parameter_field(name, value), value)


def _parameter_field(name: str, value: Parameter) -> str:
    """The field of InferParameter for a value; the unsigned one only if necessary, because older servers lack it."""
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, str):
        return "string_param"
    if isinstance(value, float):
        return "double_param"
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return "int64_param" if value < 2**63 else "uint64_param"
    raise UserError(f"parameter {name}: a request cannot carry the value {value!r}", "give text, a number or a boolean")


# --- responses -------------------------------------------------------------------------------------------------------

CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field with the elements of each datatype that is not sent raw. The protocol has no field for FP16 and BF16."""


def infer_response(data: bytes) -> InferResponse:
    """Decode a ModelInferResponse."""
    return _read_response(_parse("ModelInferResponse", data))


def stream_response(data: bytes) -> InferResponse | str:
    """Decode a message of ModelStreamInfer: a response, or the server's error message."""
    if _is_bare(data):
        return infer_response(data)
    message = _parse("ModelStreamInferResponse", data)
    if message.error_message:
        return bounded(message.error_message)
    return _read_response(message.infer_response)


def stream_id(data: bytes) -> str:
    """The id of the request that a message of ModelStreamInfer responds to, which may be an error; "" if it has none."""
    return str(_response_in(data).id)


def response_parameters(data: bytes) -> dict[str, Any]:
    """The parameters of a response, or of a message of ModelStreamInfer."""
    return parameters_of(_response_in(data).parameters)


def _response_in(data: bytes) -> Any:
    return (
        _parse("ModelInferResponse", data)
        if _is_bare(data)
        else _parse("ModelStreamInferResponse", data).infer_response
    )


def stream_error(data: bytes) -> str:
    """Return the error in a message of ModelStreamInfer, or "". For the hot path, which does not decode responses.

    error_message is field 1, and fields are written in order, so the first byte of Triton's normal responses is enough to
    see that there is no error.
    """
    if data[:1] != _FIELD_1 or _is_bare(data):
        return ""
    try:
        response = stream_response(data)
    except UserError as error:
        return bounded(error.what)
    return response if isinstance(response, str) else ""


_FIELD_1 = b"\x0a"
_FIELDS_1_AND_2 = b"\x0a\x12"  # the only fields of a ModelStreamInferResponse (both are strings or messages)
_ONLY_BARE = b"\x1a\x22\x2a\x32"  # id, parameters, outputs, raw_output_contents


def _is_bare(data: bytes) -> bool:
    """Whether a message of the stream is a bare ModelInferResponse, which MLServer sends, rather than one that is wrapped
    in a ModelStreamInferResponse.

    Field 1 is the model's name in the first and the error message in the second; the fields after 1 and 2 decide.
    """
    at = 0
    try:
        while data[at] in _FIELDS_1_AND_2:
            size, at = varint.read(data, at + 1)
            at += size
        return data[at] in _ONLY_BARE
    except IndexError:
        return False


def _read_response(message: Any) -> InferResponse:
    return InferResponse(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        outputs=_outputs(message),
        parameters=parameters_of(message.parameters),
    )


def parameters_of(field: Any) -> dict[str, Any]:
    """A map of InferParameters as Python values; None for one without a value."""
    chosen = {name: (value, value.WhichOneof("parameter_choice")) for name, value in sorted(field.items())}
    return {name: getattr(value, choice) if choice else None for name, (value, choice) in chosen.items()}


def _outputs(message: Any) -> list[Tensor | ShmOutput]:
    refs = [_region_of(output) for output in message.outputs]
    outputs: list[Tensor | ShmOutput] = []
    for output, ref, raw in zip(message.outputs, refs, _raw_contents(message, refs), strict=True):
        if ref is not None:
            outputs.append(ShmOutput(output.name, output.datatype, tuple(output.shape), ref))
        elif output.HasField("contents") and not raw:
            outputs.append(_typed(output))
        else:
            tensor = Tensor(output.name, output.datatype, tuple(output.shape), raw)
            check(tensor)
            outputs.append(tensor)
    return outputs


def _raw_contents(message: Any, refs: Sequence[ShmRef | None]) -> list[bytes]:
    """The raw contents of each output; empty for an output whose data is elsewhere.

    Triton sends one entry per output, an empty one for an output in shared memory; other servers leave those out.
    """
    raw = list(message.raw_output_contents)
    if len(raw) == len(refs):
        return raw
    is_raw = [
        ref is None and not output.HasField("contents") for output, ref in zip(message.outputs, refs, strict=True)
    ]
    if len(raw) not in (0, sum(is_raw)):
        raise UserError(f"the response has {len(refs)} outputs, but {len(raw)} raw contents")
    pieces = iter(raw)
    return [next(pieces, b"") if one else b"" for one in is_raw]


def _region_of(output: Any) -> ShmRef | None:
    try:
        return region_of(parameters_of(output.parameters))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"output {output.name}: the response has invalid shared memory parameters: {error}") from None


def _typed(output: Any) -> Tensor:
    """Read a tensor whose elements are in the field of its datatype."""
    name, datatype, shape = output.name, output.datatype, tuple(output.shape)
    datatype_of(name, datatype)
    count = elements(shape)
    if datatype not in CONTENTS:
        raise UserError(f"output {name}: {datatype} can only be sent raw, but the response has no raw contents")
    values = getattr(output.contents, CONTENTS[datatype])
    if len(values) != count:
        raise UserError(
            f"output {name}: {datatype} {shown(shape)} has {count} elements, "
            f"but {CONTENTS[datatype]} contains {len(values)}"
        )
    return Tensor(name, datatype, shape, from_contents(name, datatype, values))


def from_contents(name: str, datatype: str, values: Sequence[Any]) -> bytes | memoryview:
    """Return the elements in the field of their datatype as raw data; raises UserError if one does not fit."""
    array: NDArray[Any]
    if datatype == "BYTES":
        array = np.empty(len(values), dtype=object)
        array[:] = values
    else:  # small integers arrive as 32-bit ones: from_numpy rejects values that do not fit
        array = np.array(values, dtype=np.int64 if "int_" in CONTENTS[datatype] else datatype_of(name, datatype).dtype)
    return from_numpy(name, array, datatype).data
