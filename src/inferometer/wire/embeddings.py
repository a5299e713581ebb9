"""OpenAI's embeddings: request bodies, and what responses mean.

A response is one JSON object with a vector per input, as numbers or (`encoding_format: base64`) as packed floats. During a run
the vectors are validated as JSON and otherwise left alone. There are no output tokens.
"""

import base64
from typing import Any

import msgspec
import numpy as np

from inferometer.errors import UserError
from inferometer.types import Fail, Received, Request, Usage
from inferometer.wire import text_body
from inferometer.wire.context import CallContext, model_of, prompt_or_ids
from inferometer.wire.failures import MALFORMED, bounded, excerpt
from inferometer.wire.http1 import error_message


def request_body(context: CallContext, request: Request) -> bytes:
    """The JSON to post. The fields of `server.body` override all others, except those that a request has of its own."""
    body = {"model": model_of(context, request), "input": prompt_or_ids(request)}
    return msgspec.json.encode(body | context.body | request.options.body)


class _Embedding(msgspec.Struct):
    embedding: msgspec.Raw


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None


class _EmbeddingsJson(msgspec.Struct):
    data: list[_Embedding] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_EmbeddingsJson).decode


def _whole(body: bytes, into: Received) -> Fail | None:
    response = _decode(body)
    if response.error is not None:
        return Fail("error_body", error_message(body))
    if not response.data:
        return Fail("malformed_json", bounded(f"no embeddings: {excerpt(body)}"))
    if response.usage is not None and response.usage.prompt_tokens is not None:
        into.usage = Usage(response.usage.prompt_tokens, -1)
    return None


EXTRACTOR = text_body.Extractor(lambda data, at, into: _whole(data, into), _whole, lambda into: None)


def vectors(body: bytes) -> tuple[tuple[float, ...], ...]:
    """The vectors of a complete response; raises UserError if they are not lists of numbers or base64."""
    return tuple(_vector(one.embedding) for one in _decode(body).data or ())


def _vector(raw: msgspec.Raw) -> tuple[float, ...]:
    try:
        value = msgspec.json.decode(raw, type=list[float] | str)
        if isinstance(value, str):
            value = np.frombuffer(base64.b64decode(value, validate=True), "<f4").tolist()
    except MALFORMED:
        shown = excerpt(bytes(raw), 60)
        raise UserError(
            f"an embedding is neither a list of numbers nor base64: it starts with {shown}", "check the server"
        ) from None
    return tuple(value)
