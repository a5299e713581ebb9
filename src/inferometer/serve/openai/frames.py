"""The bytes of responses: JSON bodies, and server-sent events in HTTP chunk framing, prebuilt as far as possible.

A content chunk has four pieces: the size line for the text's length, the stream's prefix, the text, the tail. Prefixes
have a fixed length, so that all streams of a kind share the size lines. No JSON is encoded per token. Texts are passed
already JSON-escaped.
"""

import base64
from collections.abc import Sequence

import msgspec
import numpy as np

from inferometer.serve.http.answers import LAST_CHUNK, chunk

json_bytes = msgspec.json.encode

MESSAGES = b"/v1/messages"
_DONE = chunk(b"data: [DONE]\n\n") + LAST_CHUNK
_TABLE = 4096
"""Text lengths with prebuilt size lines."""


def escaped(text: str) -> bytes:
    """Return a text as it stands between the quotes of a JSON string."""
    return json_bytes(text)[1:-1]


class Frames:
    """The streams and bodies of OpenAI's completions (or chat) of one model."""

    def __init__(self, model: str, chat: bool) -> None:
        self._chat = chat
        self._model = json_bytes(model)
        self._id = b"chatcmpl-" if chat else b"cmpl-"
        object_ = b"chat.completion.chunk" if chat else b"text_completion"
        head = b'data: {"id":"%b%%016x","object":"%b","created":%%010d,"model":%b,"choices":['
        self._head = head % (self._id, object_, self._model.replace(b"%", b"%%"))
        self._open = b'{"index":0,"delta":{"content":"' if chat else b'{"index":0,"text":"'
        self._shut = b'"}' if chat else b'"'
        self._shut += b',"logprobs":null,"finish_reason":null}]'
        self.tail = self._shut + b"}\n\n\r\n"
        self.sizes = _sizes(self.prefix(0, 0), self.tail)
        """Size lines of content chunks, by the length of the text."""

    def prefix(self, n: int, created: int) -> bytes:
        """Return what precedes the text in each chunk of the n-th stream."""
        return self._head % (n, created) + self._open

    def content_with_usage(self, prefix: bytes, text: bytes, usage: bytes) -> bytes:
        return chunk(prefix + text + self._shut + b',"usage":' + usage + b"}\n\n")

    def opening(self, prefix: bytes, n: int, n_in: int) -> bytes:
        """Return what precedes the content: chat's first chunk, which carries no token."""
        if not self._chat:
            return b""
        delta = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        return chunk(prefix.removesuffix(self._open) + delta)

    def finish(self, prefix: bytes, reason: str, usage: bytes | None, stopped: str | None) -> bytes:
        """Return everything after the content: the finish chunk, the usage chunk, [DONE], the end of the body."""
        head = prefix.removesuffix(self._open)
        empty = b'"delta":{}' if self._chat else b'"text":""'
        event = b'%b{"index":0,%b,"logprobs":null,"finish_reason":"%b"}]}\n\n' % (head, empty, reason.encode())
        with_usage = chunk(head + b'],"usage":' + usage + b"}\n\n") if usage is not None else b""
        return chunk(event) + with_usage + _DONE

    def error(self, message: str, kind: str, code: str, status: int) -> bytes:
        """Return a framed error in the middle of a stream, and its end."""
        return chunk(b"data: " + error_body(message, kind, code) + b"\n\n") + _DONE

    def usage(self, n_in: int, n_out: int, cached: int) -> bytes:
        details = b'"prompt_tokens_details":{"cached_tokens":%d}' % cached
        counts = n_in, n_out, n_in + n_out, details
        return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,%b}' % counts

    def whole(self, n: int, created: int, text: bytes, reason: str, usage: bytes, stopped: str | None) -> bytes:
        """Return the body of a non-streamed response."""
        object_ = b"chat.completion" if self._chat else b"text_completion"
        content = b'"message":{"role":"assistant","content":"%b"}' if self._chat else b'"text":"%b"'
        return (
            b'{"id":"%b%016x","object":"%b","created":%d,"model":%b,"choices":[{"index":0,%b,"logprobs":null,"finish_reason":"%b"}],"usage":%b}'
            % (self._id, n, object_, created, self._model, content % text, reason.encode(), usage)
        )


class MessageFrames(Frames):
    """The streams and messages of one model in Anthropic's Messages API."""

    def __init__(self, model: str) -> None:
        self._model = json_bytes(model)
        self.tail = b'"}}\n\n\r\n'
        self.sizes = _sizes(_DELTA, self.tail)

    def prefix(self, n: int, created: int) -> bytes:
        return _DELTA

    def opening(self, prefix: bytes, n: int, n_in: int) -> bytes:
        """Return the events that open the message and its only block."""
        message = self._message(n, b"", _stop("", None), self.usage(n_in, 0, 0))
        return chunk(
            _event(b"message_start", b'"message":' + message)
            + _event(b"content_block_start", b'"index":0,"content_block":{"type":"text","text":""}')
            + _event(b"ping")
        )

    def finish(self, prefix: bytes, reason: str, usage: bytes | None, stopped: str | None) -> bytes:
        """Return the ends of the block and the message, and the end of the body."""
        delta = b'"delta":{%b},"usage":%b' % (_stop(reason, stopped), usage or b"{}")
        events = _event(b"content_block_stop", b'"index":0') + _event(b"message_delta", delta) + _event(b"message_stop")
        return chunk(events) + LAST_CHUNK

    def error(self, message: str, kind: str, code: str, status: int) -> bytes:
        return chunk(b"event: error\ndata: " + message_error_body(message, status) + b"\n\n") + LAST_CHUNK

    def usage(self, n_in: int, n_out: int, cached: int) -> bytes:
        """Return the usage. `input_tokens` are those that were not read from the cache."""
        return (
            b'{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d,"output_tokens":%d}'
            % (n_in - cached, cached, n_out)
        )

    def whole(self, n: int, created: int, text: bytes, reason: str, usage: bytes, stopped: str | None) -> bytes:
        content = b'{"type":"text","text":"%b"}' % text if text else b""
        return self._message(n, content, _stop(reason, stopped), usage)

    def _message(self, n: int, content: bytes, stop: bytes, usage: bytes) -> bytes:
        head = b'{"id":"msg_%016x","type":"message","role":"assistant","model":%b,' % (n, self._model)
        return head + b'"content":[%b],%b,"usage":%b}' % (content, stop, usage)


_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'
)
_STOP_REASONS = {"length": b'"max_tokens"', "stop": b'"end_turn"', "": b"null"}
_KINDS = {
    401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error", 529: "overloaded_error",
}  # fmt: skip


def _sizes(prefix: bytes, tail: bytes) -> list[bytes]:
    fixed = len(prefix) + len(tail) - 2
    return [b"%x\r\n" % (fixed + length) for length in range(_TABLE)]


def _stop(reason: str, stopped: str | None) -> bytes:
    stop_reason = b'"stop_sequence"' if stopped is not None else _STOP_REASONS[reason]
    return b'"stop_reason":%b,"stop_sequence":%b' % (stop_reason, json_bytes(stopped))


def _event(name: bytes, fields: bytes = b"") -> bytes:
    return b'event: %b\ndata: {"type":"%b"%b}\n\n' % (name, name, b"," + fields if fields else b"")


def error_body(message: str, kind: str, code: str) -> bytes:
    """Return the body of an error response of OpenAI's endpoints."""
    return json_bytes({"error": {"message": message, "type": kind, "code": code}})


def message_error_body(message: str, status: int) -> bytes:
    """Return the body of an error response of the Messages API, whose type follows from its status."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return json_bytes({"type": "error", "error": {"type": kind, "message": message}})


def embeddings_body(model: str, vectors: Sequence[np.ndarray], packed: bool, n_in: int) -> bytes:
    """Return the JSON of embeddings: float32 vectors as numbers, or `packed` as base64 of 32-bit floats."""
    values = (base64.b64encode(vector.tobytes()).decode() if packed else vector.tolist() for vector in vectors)
    rows = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
    usage = {"prompt_tokens": n_in, "total_tokens": n_in}
    return json_bytes({"object": "list", "data": rows, "model": model, "usage": usage})
