"""What there is to tell about one request."""

from typing import Any, Literal

import msgspec

from inferometer.probe.roundtrip import Instants
from inferometer.tensors import Tensor
from inferometer.types import Usage


class ServerSide(msgspec.Struct, frozen=True):
    """What the server says it took of the time, ns; -1 where it does not say."""

    queue: int
    compute: int
    source: str
    """Who says so: "its server-timing", "its statistics"."""
    requests: int = 1
    """How many the figures are an average of: others may ask at the same time."""


class InputTensor(msgspec.Struct, frozen=True):
    """An input and where it is from."""

    tensor: Tensor
    source: str


class ClassScore(msgspec.Struct, frozen=True):
    score: float
    index: int
    label: str = ""


class Response(msgspec.Struct, frozen=True):
    """One answer; a decoupled model may give any number."""

    at: int
    """ns after the request was sent."""
    outputs: tuple[Tensor, ...]
    classes: dict[str, tuple[tuple[ClassScore, ...], ...]] = {}
    """By output: the best classes of each row."""


class TextOutput(msgspec.Struct, frozen=True):
    """An answer in words."""

    text: str
    arrivals: tuple[tuple[int, int], ...]
    """When tokens arrived (ns after the send), and how many; none where the answer came in one piece."""
    usage: Usage | None = None


class Result(msgspec.Struct, frozen=True):
    kind: Literal["text", "embeddings", "tensors", "method"]
    url: str
    api: str
    """How it was asked, in words."""
    model: str
    version: str
    instants: Instants
    server: ServerSide | str | None = None
    """Or why it is not known, though the server has statistics."""
    inputs: tuple[InputTensor, ...] = ()
    responses: tuple[Response, ...] = ()
    spoken: TextOutput | None = None
    vectors: tuple[tuple[float, ...], ...] = ()
    """Embeddings: one per input."""
    usage: Usage | None = None
    """Embeddings: the server's token count, if it reports one."""
    messages: tuple[tuple[int, Any], ...] = ()
    """A gRPC method's answers as JSON, with ns after the send."""
