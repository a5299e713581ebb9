"""The inputs, requested outputs and parameters of a request: the same rules for HTTP and gRPC."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from inferometer.serve.models.shared_memory import RegionSlice
from inferometer.serve.models.types import Parameter, Refused, Tensors, Wanted
from inferometer.tensors import Tensor

EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"

Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

Data = bytes | memoryview
Find = Callable[[str, int, int], RegionSlice]
"""find(region, byte_size, offset): returns the location in a registered shared memory region."""


def invalid(message: str) -> Refused:
    return Refused("INVALID_ARGUMENT", message)


class TensorParameters(msgspec.Struct):
    """The parameters of an input or of a requested output."""

    binary_data_size: Size | None = None
    binary_data: bool = False
    classification: Size = 0
    shared_memory_region: str = ""
    shared_memory_byte_size: Size = 0
    shared_memory_offset: Size = 0

    def location(self, find: Find) -> RegionSlice:
        return find(self.shared_memory_region, self.shared_memory_byte_size, self.shared_memory_offset)


class Inputs:
    """The inputs of a request, while it is parsed."""

    def __init__(self, find: Find, id: str) -> None:
        self.tensors: Tensors = {}
        self.unread: dict[str, RegionSlice] = {}
        """Those in shared memory, which are read later."""
        self._find, self._id = find, id or "<id_unknown>"

    def add(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            raise invalid(f"[request id: {self._id}] input '{tensor.name}' already exists in request")
        self.tensors[tensor.name] = tensor

    def add_shared(self, name: str, datatype: str, shape: tuple[int, ...], given: TensorParameters) -> None:
        """Add an input that is in shared memory."""
        self.unread[name] = given.location(self._find)
        self.add(Tensor(name, datatype, shape, b""))


def wanted(name: str, given: TensorParameters, find: Find) -> Wanted:
    """Return a requested output."""
    if given.shared_memory_region and given.classification:
        raise invalid(f"output '{name}' can't set both 'shared_memory_region' and 'classification'")
    placed = given.location(find) if given.shared_memory_region else None
    return Wanted(name, given.classification, placed, given.binary_data)


def of_request(given: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a request, checked."""
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str) or (
            isinstance(value, int) and not -(2**63) <= value < 2**63
        ):
            raise invalid(f"parameter '{name:.60}' must be a bool, a 64-bit integer, a number or a string")
    timeout = given.get("timeout", 0)
    if not isinstance(timeout, int) or timeout < 0:
        raise invalid(f"timeout must be a whole number of microseconds (got {timeout!r:.40})")
    return dict(given)
