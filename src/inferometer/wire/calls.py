"""The codec of each API: how its requests become bytes, and what decodes a response's body."""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from inferometer.apis import APIS
from inferometer.errors import UserError
from inferometer.types import Calls, Request
from inferometer.wire.context import USER_AGENT, CallContext, class_heads
from inferometer.wire.http1 import ResponseDecoder, TimedResponseDecoder, heads, tail
from inferometer.wire.text_body import Extractor, body_decoder


class Codec(msgspec.Struct, frozen=True):
    """An API has either `encode`, or `body` and `extractor`: then its requests are JSON, and its responses text_body.py decodes."""

    encode: Callable[[CallContext, Sequence[Request]], Calls] | None = None
    """Encode a shard's requests."""
    body: Callable[[CallContext, Request], bytes] | None = None
    """Encode the body of a request."""
    extractor: Extractor | None = None
    """What the JSON of its responses means."""


CODECS: dict[str, tuple[str, str]] = {
    "chat": ("openai", "chat_body"),
    "completions": ("openai", "completion_body"),
    "messages": ("messages", "request_body"),
    "embeddings": ("embeddings", "request_body"),
    "generate": ("kserve.generate", "request_body"),
    "kserve": ("kserve.calls", "encode"),
    "kserve-json": ("kserve.calls", "encode"),
    "grpc": ("grpc_method", "encode"),
}
"""By name, as in the table of APIs (apis.py): the module, which is imported when it is used, and its encoder of requests or of one
body. In the latter case, the module has an EXTRACTOR."""


def codec_of(api: str) -> Codec:
    name, function = CODECS[api]
    module: Any = importlib.import_module(f"inferometer.wire.{name}")
    if function == "encode":
        return Codec(module.encode)
    return Codec(None, getattr(module, function), module.EXTRACTOR)


def encode(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode `requests` for the API of the context."""
    codec = codec_of(context.api)
    encoded = codec.encode(context, requests) if codec.encode is not None else _posts(codec, context, requests)
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


def _posts(codec: Codec, context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode requests whose bodies are JSON."""
    assert codec.extractor is not None
    api, fixed = APIS[context.api], USER_AGENT | {"Content-Type": "application/json"}
    if api.path:
        path = api.path
        fixed["Accept"] = "text/event-stream" if context.stream else "application/json"
    else:
        from inferometer.wire.kserve.generate import generate_path  # noqa: PLC0415 - few runs need it

        path = generate_path(context.model, context.version, context.stream)
    has_text = api.response == "text"
    return Calls(
        **class_heads(context, partial(heads, context.targets, path, fixed | context.headers, context.tag)),
        tails=tuple(map(turn_encoder(context), requests)),
        n_in=tuple(request.n_in or -1 for request in requests),
        n_out=tuple(request.n_out if has_text else 0 for request in requests),
        decoder=partial(_decoder, codec.extractor, context.stream, api.discovery == "kserve"),
        counts_tokens=has_text,
        max_response=128 << 20,  # the decoder keeps what it has decoded
    )


def _decoder(extractor: Extractor, is_streamed: bool, is_timed: bool) -> ResponseDecoder:
    return (TimedResponseDecoder if is_timed else ResponseDecoder)(body_decoder(extractor, is_streamed))


def turn_encoder(context: CallContext) -> Callable[[Request], bytes]:
    """What encodes the tail of a request, as that of a later turn of a session."""
    body = codec_of(context.api).body
    assert body is not None  # conduct/ has checked that the API has sessions
    return lambda request: tail(request.options.headers, body(context, request))
