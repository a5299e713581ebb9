"""Inferences of KServe v2, whether over HTTP (http.py) or gRPC (grpc.py): requests without their tensors, and responses."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.tensors import Tensor, datatype_of, elements
from inferometer.wire.context import ShmRef

Parameter = bool | int | float | str
Parameters = dict[str, Parameter]


class ShmOutput(msgspec.Struct, frozen=True):
    """An output that the server wrote to shared memory."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    ref: ShmRef


class InferOptions(msgspec.Struct, frozen=True):
    """Everything in a request except its tensors. sequence_id, sequence_start and sequence_end are ordinary parameters."""

    id: str = ""
    parameters: Parameters = {}
    outputs: tuple[str, ...] = ()
    """The requested outputs; empty: all of them."""
    classification: int = 0
    """Request the k best classes of each named output instead of its values; 0: the values."""
    binary: bool = True
    """Over HTTP, tensors are sent and requested as raw bytes; over gRPC they always are."""
    shm_inputs: dict[str, ShmRef] = {}
    """Inputs whose data is in shared memory; the tensor's own data is not sent."""
    shm_outputs: dict[str, ShmRef] = {}
    """Outputs that the server writes to shared memory. Naming an output here requests it."""


class InferResponse(msgspec.Struct, frozen=True):
    model: str
    version: str
    id: str
    outputs: list[Tensor | ShmOutput]
    parameters: dict[str, Any] = {}


def regions(tensors: Sequence[Tensor], options: InferOptions) -> list[Parameters]:
    """The parameters of each input that say where in shared memory its data is; empty for an input whose data is sent."""
    unknown = set(options.shm_inputs) - {tensor.name for tensor in tensors}
    if unknown:
        raise UserError(f"shared memory is given for {', '.join(sorted(unknown))}, but the request has no such tensor")
    for tensor in tensors:
        if tensor.name in options.shm_inputs:
            datatype_of(tensor.name, tensor.datatype)
            elements(tensor.shape)
    refs = (options.shm_inputs.get(tensor.name) for tensor in tensors)
    return [_region(ref) if ref is not None else {} for ref in refs]


def requested(options: InferOptions) -> list[tuple[str, Parameters]]:
    """The outputs that a request names, and the parameters of each."""
    names = [*options.outputs, *(name for name in options.shm_outputs if name not in options.outputs)]
    if options.classification and not names:
        raise UserError("classification is requested, but no output is named", "name the outputs")
    classes: Parameters = {"classification": options.classification} if options.classification else {}
    outputs = []
    for name in names:
        ref = options.shm_outputs.get(name)
        if ref is not None and classes:
            raise UserError(f"output {name}: classes cannot be written to shared memory", "request one or the other")
        outputs.append((name, classes if ref is None else _region(ref)))
    return outputs


def _region(ref: ShmRef) -> Parameters:
    region: Parameters = {"shared_memory_region": ref.region, "shared_memory_byte_size": ref.byte_size}
    return region | {"shared_memory_offset": ref.offset} if ref.offset else region


def region_of(parameters: Mapping[str, Any]) -> ShmRef | None:
    """Where in shared memory an output is, by its parameters; raises KeyError, TypeError or ValueError if they are not valid."""
    if "shared_memory_region" not in parameters:
        return None
    return ShmRef(
        region=str(parameters["shared_memory_region"]),
        byte_size=whole_number(parameters["shared_memory_byte_size"]),
        offset=whole_number(parameters.get("shared_memory_offset", 0)),
    )


def whole_number(value: Any) -> int:
    """Read a JSON number, or a string that contains one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)
