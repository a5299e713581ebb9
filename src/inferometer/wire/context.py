"""What the requests of one shard share: the input of every encoder (wire/calls.py) besides the requests themselves."""

from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec

from inferometer import __version__
from inferometer.types import Request
from inferometer.wire.history import joined
from inferometer.wire.target import Target

if TYPE_CHECKING:
    from inferometer.tensors import Tensor

Parameters = dict[str, bool | int | float | str]

USER_AGENT = {"User-Agent": f"inferometer/{__version__}"}


def prompt_text(request: Request) -> str:
    """The text of a request; for chat messages, their contents one after the other (history.py)."""
    payload = request.payload
    return payload if isinstance(payload, str) else joined(payload if isinstance(payload, list) else [])


def prompt_or_ids(request: Request) -> str | list[int]:
    """The ids of a prompt's tokens if it is given as such, otherwise its text."""
    payload: Any = request.payload
    return payload if isinstance(payload, list) and payload and isinstance(payload[0], int) else prompt_text(request)


class Sequenced(msgspec.Struct, frozen=True):
    """Requests in consecutive sequences of these lengths, with consecutive correlation ids. Empty: no sequences."""

    lengths: tuple[int, ...] = ()
    first_id: int = 1

    def parameters(self) -> Iterator[Parameters]:
        """Yield the sequence parameters of each request in turn; without sequences, empty ones forever."""
        if not self.lengths:
            yield from repeat({})
        for number, length in enumerate(self.lengths):
            for turn in range(length):
                yield {
                    "sequence_id": self.first_id + number,
                    "sequence_start": turn == 0,
                    "sequence_end": turn == length - 1,
                }


class ShmRef(msgspec.Struct, frozen=True):
    """A part of a registered region of shared memory."""

    region: str
    byte_size: int
    offset: int = 0


class SharedRefs(msgspec.Struct, frozen=True):
    """Where the tensors of a shard's nth request are in shared memory; each tuple is used in turn, over and over."""

    inputs: tuple[dict[str, ShmRef], ...]
    outputs: tuple[dict[str, ShmRef], ...]


def model_of(context: "CallContext", request: Request) -> str:
    """The model that a request names."""
    return request.options.model or context.model


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that an encoder may need. The names are those of the config's `server` section."""

    api: str
    model: str
    targets: tuple[Target, ...]
    tag: str
    """What every request's X-Request-Id is made from, with its number."""
    traceparent: bool = False
    """Send each request with the id of its trace."""
    headers: dict[str, str] = {}
    """Includes the API key's header: must not be stored."""
    class_headers: tuple[dict[str, str], ...] = ()
    """The headers of each traffic class, which override `headers`. Like these, they must not be stored."""
    stream: bool = False
    persistent: bool = False
    """gRPC: a stream carries many requests, one after the other."""
    decoupled: bool = False
    """KServe: a request may have any number of responses."""
    body: dict[str, Any] = {}
    usage: bool = True
    ignore_eos: bool = False
    max_tokens_field: str = "max_tokens"
    version: str = ""
    timing: dict[str, str] = {}
    parameters: Parameters = {}
    outputs: tuple[str, ...] = ()
    compression: str = "none"
    deadline: float = 0.0
    """Seconds, sent as grpc-timeout; 0: none."""
    method: str = ""
    """gRPC: `package.Service/Method`."""
    descriptors: bytes = b""
    """gRPC: the descriptor set that defines the method."""
    sequenced: Sequenced = Sequenced()
    first_index: int = 0
    """The index of the first request to encode among all requests of the shard, which is what sequences and shared memory go by."""
    expected: "tuple[tuple[Tensor, ...], ...]" = ()
    """The outputs that the response to each request must have; empty: responses are not checked."""
    shared: SharedRefs | None = None
    """The tensors' addresses if they are passed through shared memory."""


def class_heads(context: CallContext, make: Callable[[Mapping[str, str]], tuple[bytes, ...]]) -> dict[str, Any]:
    """The heads of Calls: those of all requests, and those of each traffic class, whose headers `make` adds to the others."""
    return {"heads": make({}), "class_heads": tuple(map(make, context.class_headers))}
