"""The codec of each API: how its requests become bytes, and what decodes a response's body."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from inferometer.errors import UserError
from inferometer.types import Calls, Request
from inferometer.wire import embeddings, grpc_method, messages, openai, traceparent
from inferometer.wire.context import CallContext
from inferometer.wire.http1 import BodyDecoder, ResponseDecoder
from inferometer.wire.kserve import calls as kserve


class Codec(msgspec.Struct, frozen=True):
    encode: Callable[[CallContext, Sequence[Request]], Calls]
    """Encode a shard's requests."""
    tail: Callable[[CallContext, Request], bytes] | None = None
    """Encode a later turn of a session as a tail of Calls. None: the API has no sessions."""
    content: Callable[[ResponseDecoder], str] | None = None
    """The text of a response that the next turn of a session contains. None: the API has no sessions."""
    body: Callable[[bool], BodyDecoder] | None = None
    """Make the decoder of one response body, streamed or not. None: the API has no such decoder of its own."""


CODECS: dict[str, Codec] = {
    "chat": Codec(openai.encode_chat, openai.chat_tail, openai.content_of, openai.body_decoder),
    "completions": Codec(openai.encode_completions, openai.completions_tail, openai.content_of, openai.body_decoder),
    "messages": Codec(messages.encode, messages.encode_tail, messages.content_of, messages.body_decoder),
    "embeddings": Codec(embeddings.encode, body=embeddings.body_decoder),
    "kserve": Codec(kserve.encode),
    "kserve-json": Codec(kserve.encode),
    "generate": Codec(kserve.encode_generate, body=kserve.generate_decoder),
    "grpc": Codec(grpc_method.encode),
}
"""By name, as in the table of APIs (apis.py)."""


def encode(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode `requests` for the API of the context."""
    encoded = CODECS[context.api].encode(context, requests)
    if context.traceparent:
        _check_headers(requests)
        make_header = traceparent.http1_header if encoded.response is None else traceparent.http2_header
        encoded = msgspec.structs.replace(encoded, trace_header=make_header(context.tag))
    if not context.class_headers:
        return encoded
    return msgspec.structs.replace(encoded, classes=tuple(request.class_ for request in requests))


def _check_headers(requests: Sequence[Request]) -> None:
    """Raise UserError if a request has a traceparent of its own: a server ignores both if there are two."""
    for request in requests:
        if any(name.lower() == traceparent.NAME for name in request.options.headers):
            raise UserError(
                f"request {request.id} already has a {traceparent.NAME} header, from the data",
                "remove it from the data, or leave {export.otlp.traceparent} out",
                "export.otlp.traceparent",
            )


def turn_encoder(context: CallContext) -> Callable[[Request], bytes]:
    """What encodes the later turns of sessions: the tail of each."""
    encode_tail = CODECS[context.api].tail
    assert encode_tail is not None  # conduct/ has checked that the API has sessions
    return partial(encode_tail, context)
