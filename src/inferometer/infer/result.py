"""The result of one request: everything there is to show."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from inferometer.probe.roundtrip import Instants
from inferometer.tensors import Tensor
from inferometer.types import Event, ServerTiming, Usage


class ServerSide(msgspec.Struct, frozen=True):
    """The server's own account of its time, in ns; -1 if it does not say."""

    queue: int
    compute: int
    source: str
    """Where the figures come from: "its server-timing", "its statistics"."""
    requests: int = 1
    """How many requests the figures are an average of: other clients may use the server at the same time."""
    total: int = -1
    """From receiving the request to sending the response."""


class InputTensor(msgspec.Struct, frozen=True):
    """An input and where it comes from."""

    tensor: Tensor
    source: str


class ClassScore(msgspec.Struct, frozen=True):
    score: float
    index: int
    label: str = ""


class Response(msgspec.Struct, frozen=True):
    """One response; a decoupled model may send any number."""

    at: int
    """ns after the request was sent."""
    outputs: tuple[Tensor, ...]
    classes: dict[str, tuple[tuple[ClassScore, ...], ...]] = {}
    """The top classes of each row, by output."""


class TextOutput(msgspec.Struct, frozen=True):
    """A text response."""

    text: str
    arrivals: tuple[tuple[int, int], ...]
    """When tokens arrived (ns after the send) and how many; empty if the response was not streamed."""
    usage: Usage | None = None


class Result(msgspec.Struct, frozen=True):
    kind: Literal["text", "embeddings", "tensors", "method"]
    url: str
    api: str
    """The API and its variant, as shown to people."""
    model: str
    version: str
    instants: Instants
    server: ServerSide | str | None = None
    """A string says why it is not known although the server has statistics."""
    inputs: tuple[InputTensor, ...] = ()
    responses: tuple[Response, ...] = ()
    output: TextOutput | None = None
    vectors: tuple[tuple[float, ...], ...] = ()
    """Embeddings: one per input."""
    usage: Usage | None = None
    """Embeddings: the server's token count, if it reports one."""
    messages: tuple[tuple[int, Any], ...] = ()
    """A gRPC method's responses as JSON, with ns after the send."""


class Arrived:
    """The messages of a response, and the server's account of its time."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        """What the decoder has kept since the last `note`."""
        self.messages: list[tuple[int, bytes]] = []
        self.timing: ServerTiming | None = None

    def note(self, at: int, events: Sequence[Event]) -> None:
        self.messages += ((at, message) for message in self.kept)
        self.kept.clear()
        self.timing = next((event for event in reversed(events) if isinstance(event, ServerTiming)), self.timing)
