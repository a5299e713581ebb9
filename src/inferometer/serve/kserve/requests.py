"""The inputs, requested outputs and parameters of a request: the same rules for HTTP and gRPC."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec

from inferometer.serve.models.shared_memory import RegionSlice
from inferometer.serve.models.types import Inference, Parameter, Refused, Tensors, Wanted
from inferometer.tensors import Tensor

Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Data = bytes | memoryview
Find = Callable[[str, int, int], RegionSlice]
"""find(region, byte_size, offset): returns the location in a registered shared memory region."""
Signature = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""The name, datatype, shape and size of each input."""


class TensorParameters(msgspec.Struct):
    """The parameters of an input or of a requested output."""

    binary_data_size: Size | None = None
    binary_data: bool = False
    classification: Size = 0
    shared_memory_region: str = ""
    shared_memory_byte_size: Size = 0
    shared_memory_offset: Size = 0
    content_type: str | None = None

    def location(self, find: Find) -> RegionSlice:
        return find(self.shared_memory_region, self.shared_memory_byte_size, self.shared_memory_offset)


def invalid(message: str) -> Refused:
    return Refused("INVALID_ARGUMENT", message)


def inference(
    model: str,
    version: str,
    id: str,
    inputs: Iterable[tuple[Tensor, TensorParameters | None]],
    outputs: Iterable[tuple[str, TensorParameters]],
    parameters: dict[str, Any],
    find: Find,
) -> Inference:
    """Return the inference that a request describes; its callbacks and times are still to be set. The parameters of an
    input are given if it is in shared memory, which is read later."""
    tensors: Tensors = {}
    unread: dict[str, RegionSlice] = {}
    for tensor, shared in inputs:
        if tensor.name in tensors:
            raise invalid(f"[request id: {id or '<id_unknown>'}] input '{tensor.name}' already exists in request")
        tensors[tensor.name] = tensor
        if shared is not None:
            unread[tensor.name] = shared.location(find)
    wanted = []
    for name, given in outputs:
        if given.shared_memory_region and given.classification:
            raise invalid(f"output '{name}' can't set both 'shared_memory_region' and 'classification'")
        placed = given.location(find) if given.shared_memory_region else None
        wanted.append(Wanted(name, given.classification, placed, given.binary_data))
    checked = check_parameters(parameters)
    return Inference(model, tensors, version=version, id=id, wanted=tuple(wanted), parameters=checked, unread=unread)


def check_parameters(given: dict[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a request; raises Refused if one is not valid."""
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str) or (
            isinstance(value, int) and not -(2**63) <= value < 2**63
        ):
            raise invalid(f"parameter '{name:.60}' must be a bool, a 64-bit integer, a number or a string")
    timeout = given.get("timeout", 0)
    if not isinstance(timeout, int) or timeout < 0:
        raise invalid(f"timeout must be a whole number of microseconds (got {timeout!r:.40})")
    return given


def signature(one: Inference) -> Signature | None:
    """Return what the codecs remember of the inputs of a request that may come again; None if it uses shared memory."""
    if one.unread or any(wanted.placed for wanted in one.wanted):
        return None
    return tuple((tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in one.inputs.values())
