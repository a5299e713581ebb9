"""Checks responses of KServe v2 against the outputs that the data says they must have (`data.validate`).

The hot path only keeps the bytes of a response. They are compared when the requests that follow have been sent: first with
the last response to the same request that was right, which is all there is to do for a model that always returns the same bytes,
and only if they differ are the outputs decoded. Floats may differ a little; everything else must be equal.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from inferometer.errors import UserError
from inferometer.tensors import Tensor, to_numpy
from inferometer.types import Fail
from inferometer.wire.http1 import TimedResponseDecoder
from inferometer.wire.kserve import grpc, http
from inferometer.wire.kserve.http import CountedResponse
from inferometer.wire.kserve.infer import InferResponse

Expected = tuple[Tensor, ...]
"""The outputs of one response, of which only the elements count: their shape is not known."""
Kept = tuple[tuple[str, ...], bytes]
"""What is kept of a response: the headers that say how to read it, and its bytes."""

_READ_BY = (http.JSON_LENGTH.lower(), "content-encoding")
_TOLERANCES = {"FP64": 1e-4, "FP32": 1e-4, "FP16": 1e-2, "BF16": 2e-2}
"""By datatype, relative to the expected value, or absolute if that is smaller than 1."""


class OutputCheck:
    """Compares the response to a shard's nth request with `expected[n]`."""

    def __init__(self, expected: Sequence[Expected], read: Callable[[Kept], InferResponse]) -> None:
        self._expected = expected
        self._read = read
        self._right: dict[int, Kept] = {}  # the last response to each request that was right

    def keep(self, response: Any) -> Kept:
        """Take what the check needs from a complete response, before its decoder is used again."""
        kept: Kept = response.content
        return kept

    def failure(self, index: int, kept: Kept) -> Fail | None:
        """The failure of a response that has other outputs than expected."""
        if self._right.get(index) == kept:
            return None
        try:
            outputs = {one.name: one for one in self._read(kept).outputs if isinstance(one, Tensor)}
            problems = [_mismatch(one, outputs.get(one.name)) for one in self._expected[index]]
        except UserError as error:
            return Fail("wrong_output", error.what, True)
        problem = "; ".join(filter(None, problems))
        if problem:
            return Fail("wrong_output", problem, True)
        self._right[index] = kept
        return None


def _mismatch(expected: Tensor, found: Tensor | None) -> str:
    """Describe how an output differs from what was expected; "" if it does not."""
    if found is None:
        return f"there is no output {expected.name}"
    if found.datatype == expected.datatype and found.data == expected.data:
        return ""
    values = to_numpy(found).reshape(-1)
    wanted = to_numpy(expected).reshape(-1)
    if values.size != wanted.size:
        return f"output {expected.name} has {values.size} elements; {wanted.size} were expected"
    tolerance = _TOLERANCES.get(expected.datatype)
    if tolerance is None:
        differs = values != wanted
    else:
        with np.errstate(invalid="ignore"):
            near = np.abs(values - wanted) <= tolerance * np.maximum(np.abs(wanted), 1)
        differs = ~(near | (values == wanted) | (np.isnan(values) & np.isnan(wanted)))
    count = int(differs.sum())
    if not count:
        return ""
    first = int(differs.argmax())
    others = f" ({count} elements differ)" if count > 1 else ""
    return (
        f"output {expected.name}: element {first} is {_shown(values[first])}, expected {_shown(wanted[first])}{others}"
    )


def _shown(value: Any) -> str:
    return repr(value)[1:61] if isinstance(value, bytes) else f"{value}"


# --- HTTP ------------------------------------------------------------------------------------------------------------


class KeptDecoder(TimedResponseDecoder):
    """Keeps the body of a response, and the headers that say how to read it."""

    __slots__ = ("_kept_body",)

    def __init__(self) -> None:
        self._kept_body = CountedResponse(keeps=True)
        super().__init__(self._kept_body)

    @property
    def content(self) -> Kept:
        return tuple(map(self.header, _READ_BY)), b"".join(self._kept_body.pieces)


def read_http(kept: Kept) -> InferResponse:
    return http.decode(200, dict(zip(_READ_BY, kept[0], strict=True)), kept[1])


# --- gRPC ------------------------------------------------------------------------------------------------------------


def read_grpc(kept: Kept) -> InferResponse:
    return grpc.infer_response(kept[1])


def read_stream(kept: Kept) -> InferResponse:
    response = grpc.stream_response(kept[1])
    if isinstance(response, str):
        raise UserError(response)
    return response
