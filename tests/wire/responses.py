"""Responses of OpenAI-style servers as bytes, for the tests of the decoders, and what a decoder makes of them."""

import json
from collections.abc import Iterable

from inferometer.types import Decoder, End, Event, Fail, Tokens


def fed(decoder: Decoder, pieces: Iterable[bytes], eof: bool = False) -> End | Fail | None:
    """Feed the pieces, which arrive at the instants 1, 2, 3 ..., until the response ends; with `eof`, the server then closes."""
    for at, piece in enumerate(pieces, 1):
        ending = decoder.feed([piece], [at])
        if ending is not None:
            return ending
    return decoder.eof() if eof else None


def events_up_to_the_end(decoder: Decoder, pieces: Iterable[bytes], eof: bool) -> list[Event]:
    """What the response brought, one after the other: tokens, the latest usage, and how it ended."""
    ending, received = fed(decoder, pieces, eof), decoder.received
    events: list[Event | None] = [*map(Tokens, received.counts), received.usage, ending]
    return [event for event in events if event is not None]


def chunk(text: str | None = None, finish: str | None = None, **more: object) -> dict[str, object]:
    delta = {} if text is None else {"content": text}
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }


def sse(*frames: object, done: bool = True) -> bytes:
    lines = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])]).encode()


def http(body: bytes, status: int = 200, chunked: bool = False, headers: str = "", length: bool = True) -> bytes:
    head = f"HTTP/1.1 {status} X\r\n{headers}"
    if chunked:
        pieces = [body[n : n + 37] for n in range(0, len(body), 37)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + framed
    return (head + (f"Content-Length: {len(body)}\r\n" if length else "") + "\r\n").encode() + body


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
STREAM = sse(
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    chunk("a"),
    chunk("b"),
    chunk("c"),
    chunk(finish="stop"),
    {"choices": [], "usage": USAGE},
)
UNSTREAMED = json.dumps(
    {"choices": [{"message": {"role": "assistant", "content": "abc"}, "finish_reason": "stop"}], "usage": USAGE}
).encode()
