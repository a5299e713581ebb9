"""KServe v2 over gRPC: infer requests and answers, and the control questions, as protobuf messages.

Requests carry tensors raw (raw_input_contents); answers may carry them raw (Triton) or in the field of their datatype
(MLServer, if it was asked so). A `Call` is a question of control.py in gRPC's form: the method's path, the request, and how to read the answer.
Message framing and status are wire/grpc.py's: here a message is the bytes between.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import SEND_LESS, UserError
from inferometer.tensors import GRPC_MESSAGE, Tensor, check, datatype_of, elements, from_numpy, shown
from inferometer.wire import protobuf
from inferometer.wire.failures import bounded
from inferometer.wire.kserve import control
from inferometer.wire.kserve.http import InferOptions, InferResponse, Parameter, ShmOutput, ShmRef

_SERVICE = "inference.GRPCInferenceService"
INFER = f"/{_SERVICE}/ModelInfer"
STREAM_INFER = f"/{_SERVICE}/ModelStreamInfer"


def _class(name: str) -> type[Any]:
    return protobuf.own("kserve").message(f"inference.{name}")


# --- requests --------------------------------------------------------------------------------------------------------


def infer_request(model: str, version: str, tensors: Sequence[Tensor], options: InferOptions) -> bytes:
    """A ModelInferRequest. `options.binary` does not matter here: tensors are always raw."""
    unknown = set(options.shm_inputs) - {tensor.name for tensor in tensors}
    if unknown:
        raise UserError(f"shared memory is named for {', '.join(sorted(unknown))}, which the request has no tensor for")
    request = _class("ModelInferRequest")(model_name=model, model_version=version, id=options.id)
    _set(request.parameters, options.parameters)
    for tensor in tensors:
        _add_input(request, tensor, options.shm_inputs.get(tensor.name))
    for name in _requested(options):
        _set(request.outputs.add(name=name).parameters, _output_parameters(name, options))
    size = request.ByteSize()
    if size > GRPC_MESSAGE:
        raise UserError(f"the request is {size} bytes; a gRPC message has at most {GRPC_MESSAGE}", SEND_LESS)
    data: bytes = request.SerializeToString(deterministic=True)
    return data


def _add_input(request: Any, tensor: Tensor, ref: ShmRef | None) -> None:
    made = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    if ref is None:
        check(tensor)
        request.raw_input_contents.append(tensor.data)
        return
    datatype_of(tensor.name, tensor.datatype)
    elements(tensor.shape)
    _set(made.parameters, _shm_parameters(ref))


def _requested(options: InferOptions) -> list[str]:
    names = [*options.outputs, *(name for name in options.shm_outputs if name not in options.outputs)]
    if options.classification and not names:
        raise UserError("classes are asked for, but of no output", "name the outputs")
    return names


def _output_parameters(name: str, options: InferOptions) -> dict[str, Parameter]:
    ref = options.shm_outputs.get(name)
    if ref is None:
        return {"classification": options.classification} if options.classification else {}
    if options.classification:
        raise UserError(f"output {name}: classes cannot be written into shared memory", "ask for one of the two")
    return _shm_parameters(ref)


def _shm_parameters(ref: ShmRef) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {
        "shared_memory_region": ref.region,
        "shared_memory_byte_size": ref.byte_size,
    }
    return parameters | {"shared_memory_offset": ref.offset} if ref.offset else parameters


def _set(field: Any, parameters: Mapping[str, Parameter]) -> None:
    for name, value in parameters.items():
        setattr(field[name], _choice(name, value), value)


def _choice(name: str, value: Parameter) -> str:
    """The field of InferParameter for a value; unsigned only where it must be, since older servers do not know that one."""
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, str):
        return "string_param"
    if isinstance(value, float):
        return "double_param"
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return "int64_param" if value < 2**63 else "uint64_param"
    raise UserError(
        f"parameter {name}: {value!r} is no value that a request can carry", "give text, a number or a boolean"
    )


# --- answers ---------------------------------------------------------------------------------------------------------

_CONTENTS = {
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
"""Where the elements of a datatype are that is not sent raw. The protocol has no place for FP16 and BF16."""

_NO_SHM: Mapping[str, ShmRef] = {}


def infer_answer(data: bytes, shm_outputs: Mapping[str, ShmRef] = _NO_SHM) -> InferResponse:
    """A ModelInferResponse. `shm_outputs` are those that the request named: Triton's answer does not repeat them."""
    return _read_answer(protobuf.parse(_class("ModelInferResponse"), data), shm_outputs)


def stream_answer(data: bytes, shm_outputs: Mapping[str, ShmRef] = _NO_SHM) -> InferResponse | str:
    """A message of ModelStreamInfer: an answer, or the server's error message."""
    if _is_bare(data):
        return infer_answer(data, shm_outputs)
    answer = protobuf.parse(_class("ModelStreamInferResponse"), data)
    if answer.error_message:
        return bounded(answer.error_message)
    return _read_answer(answer.infer_response, shm_outputs)


def stream_error(data: bytes) -> str:
    """The error in a message of ModelStreamInfer, "" where there is none: for the hot path, which does not decode answers.

    error_message is field 1, and fields are written in order: the first byte of Triton's answers tells that it is none.
    """
    if data[:1] != _FIELD_1 or _is_bare(data):
        return ""
    try:
        answer = stream_answer(data)
    except UserError as error:
        return bounded(error.what)
    return answer if isinstance(answer, str) else ""


_FIELD_1 = b"\x0a"
_BOTH = b"\x0a\x12"  # fields 1 and 2, texts or messages: all that a ModelStreamInferResponse has
_ONLY_BARE = b"\x1a\x22\x2a\x32"  # id, parameters, outputs, raw_output_contents


def _is_bare(data: bytes) -> bool:
    """Whether a stream's message is a ModelInferResponse, which MLServer sends, not a ModelStreamInferResponse around one.

    The first has its model's name where the other has the error message; what comes after fields 1 and 2 tells.
    """
    place, end = 0, len(data)
    while place < end and data[place] in _BOTH:
        size = shift = 0
        place += 1
        while place < end and shift < 35:
            byte = data[place]
            size |= (byte & 0x7F) << shift
            shift += 7
            place += 1
            if byte < 0x80:
                break
        place += size
    return place < end and data[place] in _ONLY_BARE


def _read_answer(answer: Any, shm_outputs: Mapping[str, ShmRef]) -> InferResponse:
    return InferResponse(
        model=answer.model_name,
        version=answer.model_version,
        id=answer.id,
        outputs=_outputs(answer, shm_outputs),
        parameters=_parameters(answer.parameters),
    )


def _parameters(field: Any) -> dict[str, Any]:
    chosen = {name: (value, value.WhichOneof("parameter_choice")) for name, value in sorted(field.items())}
    return {name: getattr(value, choice) if choice else None for name, (value, choice) in chosen.items()}


def _outputs(answer: Any, shm_outputs: Mapping[str, ShmRef]) -> list[Tensor | ShmOutput]:
    refs = [_shm_ref(output, shm_outputs) for output in answer.outputs]
    outputs: list[Tensor | ShmOutput] = []
    for output, ref, raw in zip(answer.outputs, refs, _raw(answer, refs), strict=True):
        if ref is not None:
            outputs.append(ShmOutput(output.name, output.datatype, tuple(output.shape), ref))
        elif output.HasField("contents") and not raw:
            outputs.append(_typed(output))
        else:
            tensor = Tensor(output.name, output.datatype, tuple(output.shape), raw)
            check(tensor)
            outputs.append(tensor)
    return outputs


def _raw(answer: Any, refs: Sequence[ShmRef | None]) -> list[bytes]:
    """The raw contents of each output; empty for those that are elsewhere.

    Triton sends as many as there are outputs, an empty one for what is in shared memory; others leave those out.
    """
    raw = list(answer.raw_output_contents)
    if len(raw) == len(refs):
        return raw
    here = [ref is None and not output.HasField("contents") for output, ref in zip(answer.outputs, refs, strict=True)]
    if len(raw) not in (0, sum(here)):
        raise UserError(f"the answer has {len(refs)} outputs, but {len(raw)} raw contents")
    pieces = iter(raw)
    return [next(pieces, b"") if one else b"" for one in here]


def _shm_ref(output: Any, shm_outputs: Mapping[str, ShmRef]) -> ShmRef | None:
    said = _parameters(output.parameters)
    if "shared_memory_region" not in said:
        return shm_outputs.get(output.name)
    try:
        return ShmRef(
            region=str(said["shared_memory_region"]),
            byte_size=int(said["shared_memory_byte_size"]),
            offset=int(said.get("shared_memory_offset", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"output {output.name}: the answer says where it is in shared memory, but not well: {error}"
        ) from None


def _typed(output: Any) -> Tensor:
    """A tensor whose elements came in the field of its datatype."""
    name, datatype, shape = output.name, output.datatype, tuple(output.shape)
    kind, count = datatype_of(name, datatype), elements(shape)
    if datatype not in _CONTENTS:
        raise UserError(f"output {name}: {datatype} can only be sent raw, and the answer has no raw contents")
    values = getattr(output.contents, _CONTENTS[datatype])
    if len(values) != count:
        raise UserError(
            f"output {name}: {datatype} {shown(shape)} is {count} elements, but {len(values)} came in {_CONTENTS[datatype]}"
        )
    array: NDArray[Any]
    if kind.dtype is None:
        array = np.empty(count, dtype=object)
        array[:] = values
    else:  # INT8 comes as int32: from_numpy says what does not fit
        array = np.array(values, dtype=np.int64 if "int_" in _CONTENTS[datatype] else kind.dtype)
    return from_numpy(name, array.reshape(shape), datatype)


# --- the control questions -------------------------------------------------------------------------------------------

T = TypeVar("T")


class ControlCall(msgspec.Struct, Generic[T], frozen=True):
    what: str
    """What is asked for, for messages."""
    path: str
    message: bytes
    parse: Callable[[bytes], T]


def live() -> ControlCall[bool]:
    return _call("ServerLive", {}, control.live(), _flag("live"))


def ready() -> ControlCall[bool]:
    return _call("ServerReady", {}, control.ready(), _flag("ready"))


def model_ready(model: str, version: str = "") -> ControlCall[bool]:
    return _call("ModelReady", _named(model, version), control.model_ready(model, version), _flag("ready"))


def server_metadata() -> ControlCall[control.ServerMetadata]:
    question = control.server_metadata()
    return _call("ServerMetadata", {}, question, question.parse)


def model_metadata(model: str, version: str = "") -> ControlCall[control.ModelMetadata]:
    question = control.model_metadata(model, version)
    return _call("ModelMetadata", _named(model, version), question, question.parse)


def model_config(model: str, version: str = "") -> ControlCall[control.ModelConfig]:
    question = control.model_config(model, version)
    return _call("ModelConfig", _named(model, version), question, lambda tree: question.parse(tree["config"]))


def repository_index() -> ControlCall[tuple[control.IndexEntry, ...]]:
    question = control.repository_index()
    return _call("RepositoryIndex", {}, question, lambda tree: question.parse(tree["models"]))


def statistics(model: str = "", version: str = "") -> ControlCall[tuple[control.ModelStatistics, ...]]:
    """Of one model, or of all."""
    question = control.statistics(model, version)
    return _call("ModelStatistics", _named(model, version), question, question.parse)


def shm_register(region: str, key: str, byte_size: int, offset: int = 0) -> ControlCall[None]:
    question = control.shm_register(region, key, byte_size, offset)
    request = {"name": region, "key": key, "offset": offset, "byte_size": byte_size}
    return _call("SystemSharedMemoryRegister", request, question, question.parse)


def shm_unregister(region: str = "") -> ControlCall[None]:
    """One region, or all of them, other clients' too."""
    question = control.shm_unregister(region)
    return _call("SystemSharedMemoryUnregister", {"name": region}, question, question.parse)


def shm_status(region: str = "") -> ControlCall[tuple[control.ShmStatus, ...]]:
    """Of one region, or of all."""
    question = control.shm_status(region)
    return _call(
        "SystemSharedMemoryStatus",
        {"name": region},
        question,
        lambda tree: question.parse([tree["regions"][name] for name in sorted(tree["regions"])]),
    )


def read(call: ControlCall[T], status: int, said: str, message: bytes) -> T:
    """The typed answer, from grpc-status, grpc-message and the answer's message; NotOffered or UserError where there is none."""
    if status == _UNIMPLEMENTED:
        raise control.NotOffered(f"the server does not offer {call.what} ({bounded(said) or 'UNIMPLEMENTED'})")
    if status:
        raise UserError(f"asked for {call.what}, the server answered: {bounded(said)} (gRPC status {status})")
    return call.parse(message)


_UNIMPLEMENTED = 12


def _call(
    method: str, request: dict[str, Any], question: control.Question[T], parse: Callable[[Any], T]
) -> ControlCall[T]:
    """The same question over gRPC. Answers as trees are those of HTTP, so that control.py reads both."""
    found = protobuf.own("kserve").method(f"{_SERVICE}/{method}")

    def parse_message(data: bytes) -> T:
        tree = protobuf.decode(found.output, data, defaults=True)
        try:
            return parse(tree)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"asked for {question.what}, the server answered with something else: {error}") from None

    return ControlCall(question.what, found.path, protobuf.encode(found.input, request), parse_message)


def _named(model: str, version: str) -> dict[str, Any]:
    return {"name": model, "version": version}


def _flag(name: str) -> Callable[[Any], bool]:
    return lambda tree: bool(tree[name])
