"""The codec of each API: how its requests become bytes, and what decodes a response's body."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from inferometer.types import Calls, Request
from inferometer.wire import embeddings, grpc_method, openai
from inferometer.wire.context import CallContext
from inferometer.wire.http1 import BodyDecoder
from inferometer.wire.kserve import calls as kserve


class Codec(msgspec.Struct, frozen=True):
    encode: Callable[[CallContext, Sequence[Request]], Calls]
    """Encode a shard's requests."""
    tail: Callable[[CallContext, Request], bytes] | None = None
    """Encode a later turn of a session as a tail of Calls. None: the API has no sessions."""
    body: Callable[[bool], BodyDecoder] | None = None
    """Make the decoder of one response body, streamed or not. None: the API has no such decoder of its own."""


CODECS: dict[str, Codec] = {
    "chat": Codec(openai.encode_chat, openai.chat_tail, openai.body_decoder),
    "completions": Codec(openai.encode_completions, openai.completions_tail, openai.body_decoder),
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
    if not context.class_headers:
        return encoded
    return msgspec.structs.replace(encoded, classes=tuple(request.class_ for request in requests))


def turn_encoder(context: CallContext) -> Callable[[Request], bytes]:
    """What encodes the later turns of sessions: the tail of each."""
    encode_tail = CODECS[context.api].tail
    assert encode_tail is not None  # conduct/ has checked that the API has sessions
    return partial(encode_tail, context)
