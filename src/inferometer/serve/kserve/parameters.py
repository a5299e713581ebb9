"""The parameters of requests and of their tensors: the same rules for HTTP and gRPC. Messages are Triton's if it has any."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from inferometer.serve.models.types import Parameter, Placed, Refused, Wanted

EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"

INT64 = 2**63 - 1
Size = Annotated[int, msgspec.Meta(ge=0, le=INT64)]


def invalid(message: str) -> Refused:
    return Refused("INVALID_ARGUMENT", message)


class TensorParameters(msgspec.Struct):
    """The parameters of an input or of a requested output."""

    binary_data_size: Size | msgspec.UnsetType = msgspec.UNSET
    binary_data: bool = False
    classification: Size = 0
    shared_memory_region: str = ""
    shared_memory_byte_size: Size = 0
    shared_memory_offset: Size = 0

    @property
    def placed(self) -> Placed | None:
        """The tensor's location in shared memory."""
        if not self.shared_memory_region:
            return None
        return Placed(self.shared_memory_region, self.shared_memory_byte_size, self.shared_memory_offset)


def wanted(name: str, given: TensorParameters) -> Wanted:
    """Return a requested output."""
    placed = given.placed
    if placed is not None and given.classification:
        raise invalid(f"output '{name}' can't set both 'shared_memory_region' and 'classification'")
    return Wanted(name, given.classification, placed, given.binary_data)


_TYPES: dict[str, tuple[Any, str]] = {
    "sequence_id": (int | str, "a number or a text"),
    "sequence_start": (bool, "true or false"),
    "sequence_end": (bool, "true or false"),
    "priority": (int, "a whole number"),
    "timeout": (int, "a whole number"),
    EMPTY_FINAL: (bool, "true or false"),
}
_NOT_NEGATIVE = ("priority", "timeout")


def check(given: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a request, checked for valid names and types."""
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise invalid(f"parameter '{name:.60}' has invalid type. It should be either 'int', 'bool', or 'string'.")
        if name.startswith("triton_") and name != EMPTY_FINAL:
            raise invalid("parameter keys starting with 'triton_' are reserved for Triton usage.")
        if isinstance(value, int) and not -INT64 - 1 <= value <= INT64:
            raise invalid(f"parameter '{name:.60}' does not fit into 64 bits")
        kind, words = _TYPES.get(name, (object, ""))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            raise invalid(f"Unable to parse '{name}': expected {words}, got {value!r:.60}")
        if name in _NOT_NEGATIVE and value < 0:
            raise invalid(f"invalid value for '{name}', expected value >= 0.")
    return dict(given)
