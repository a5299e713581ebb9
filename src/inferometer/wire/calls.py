"""The codec of each API: how its requests become bytes, and what decodes a response's body."""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.types import Calls, Request
from inferometer.wire.context import CallContext
from inferometer.wire.http1 import BodyDecoder


class Codec(msgspec.Struct, frozen=True):
    encode: Callable[[CallContext, Sequence[Request]], Calls]
    """Encode a shard's requests."""
    tail: Callable[[CallContext, Request], bytes] | None = None
    """Encode a later turn of a session as a tail of Calls. None: the API has no sessions."""
    body: Callable[[bool], BodyDecoder] | None = None
    """Make the decoder of one response body, streamed or not. None: the API has no such decoder of its own."""


CODECS: dict[str, tuple[str, ...]] = {
    "chat": ("openai", "encode_chat", "chat_tail", "body_decoder"),
    "completions": ("openai", "encode_completions", "completions_tail", "body_decoder"),
    "messages": ("messages", "encode", "encode_tail", "body_decoder"),
    "embeddings": ("embeddings", "encode", "", "body_decoder"),
    "kserve": ("kserve.calls", "encode"),
    "kserve-json": ("kserve.calls", "encode"),
    "generate": ("kserve.calls", "encode_generate", "", "generate.body_decoder"),
    "grpc": ("grpc_method", "encode"),
}
"""By name, as in the table of APIs (apis.py): the module, and the fields of Codec there. A module is imported when it is used."""


def codec_of(api: str) -> Codec:
    name, *fields = CODECS[api]
    module = importlib.import_module(f"inferometer.wire.{name}")
    functions: Any = (attrgetter(field)(module) if field else None for field in fields)
    return Codec(*functions)


def encode(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode `requests` for the API of the context."""
    codec = codec_of(context.api)
    encoded = codec.encode(context, requests)
    if codec.body is not None:  # it keeps what it has decoded
        encoded = msgspec.structs.replace(encoded, max_response=128 << 20)
    if context.timing:
        from inferometer.wire.reported_times import timed  # noqa: PLC0415 - few runs need it

        name = "decoder" if encoded.response is None else "response"
        encoded = msgspec.structs.replace(encoded, **{name: timed(getattr(encoded, name), context)})
    if context.traceparent:
        from inferometer.wire import traceparent  # noqa: PLC0415 - few runs need it

        _check_headers(requests, traceparent.NAME)
        make_header = traceparent.http1_header if encoded.response is None else traceparent.http2_header
        encoded = msgspec.structs.replace(encoded, trace_header=make_header(context.tag))
    if not context.class_headers:
        return encoded
    return msgspec.structs.replace(encoded, classes=tuple(request.class_ for request in requests))


def _check_headers(requests: Sequence[Request], header: str) -> None:
    """Raise UserError if a request has a traceparent of its own: a server ignores both if there are two."""
    for request in requests:
        if any(name.lower() == header for name in request.options.headers):
            raise UserError(
                f"request {request.id} already has a {header} header, from the data",
                "remove it from the data, or leave {export.otlp.traceparent} out",
                "export.otlp.traceparent",
            )


def turn_encoder(context: CallContext) -> Callable[[Request], bytes]:
    """What encodes the later turns of sessions: the tail of each."""
    encode_tail = codec_of(context.api).tail
    assert encode_tail is not None  # conduct/ has checked that the API has sessions
    return partial(encode_tail, context)
