"""The bytes of responses in Anthropic's Messages API. The same interface as frames.Style, which has OpenAI's."""

from inferometer.serve.http.answers import LAST_CHUNK, chunk
from inferometer.serve.sim.frames import json_bytes

PATH = b"/v1/messages"

_KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
_UNAVAILABLE = (503, 529)


class MessageStyle:
    """The streams and messages of one model."""

    def __init__(self, model: str) -> None:
        self._model = json_bytes(model)
        self._prefix = (
            b"event: content_block_delta\n"
            b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'
        )

    def prefix(self, n: int, created: int) -> bytes:
        """Return what precedes the text in each chunk of a stream."""
        return self._prefix

    def opening(self, prefix: bytes, n: int, n_in: int) -> bytes:
        """Return what precedes the content: the events that open the message and its only block."""
        usage = self.usage(n_in, 0, 0)
        message = self._message(n, b"", b"null", usage)
        return chunk(
            _event(b"message_start", b'"message":' + message)
            + _event(b"content_block_start", b'"index":0,"content_block":{"type":"text","text":""}')
            + _event(b"ping")
        )

    def content(self, prefix: bytes, text: bytes) -> bytes:
        """Return a framed content chunk. The text is already JSON-escaped."""
        return chunk(prefix + text + b'"}}\n\n')

    def content_with_usage(self, prefix: bytes, text: bytes, usage: bytes) -> bytes:
        """Return the same: this API has no running usage."""
        return self.content(prefix, text)

    def finish(self, prefix: bytes, usage: bytes | None) -> bytes:
        """Return everything after the content: the ends of the block and the message, and the end of the body."""
        delta = b'"delta":{"stop_reason":"max_tokens","stop_sequence":null},"usage":' + (usage or b"{}")
        events = _event(b"content_block_stop", b'"index":0') + _event(b"message_delta", delta) + _event(b"message_stop")
        return chunk(events) + LAST_CHUNK

    def error(self, message: str) -> bytes:
        """Return a framed error in the middle of a stream, and its end."""
        return chunk(b"event: error\ndata: " + error_body(message, 500) + b"\n\n") + LAST_CHUNK

    def usage(self, n_in: int, n_out: int, cached: int) -> bytes:
        """Return the usage. `input_tokens` are those that were not read from the cache."""
        return (
            b'{"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d,"output_tokens":%d}'
            % (n_in - cached, cached, n_out)
        )

    def whole(self, model: str, n: int, created: int, text: bytes, usage: bytes) -> bytes:
        """Return the body of a non-streamed response."""
        content = b'{"type":"text","text":"%b"}' % text if text else b""
        return self._message(n, content, b'"max_tokens"', usage)

    def _message(self, n: int, content: bytes, stop_reason: bytes, usage: bytes) -> bytes:
        return (
            b'{"id":"msg_%016x","type":"message","role":"assistant","model":%b,"content":[%b],"stop_reason":%b,"stop_sequence":null,"usage":%b}'
            % (n, self._model, content, stop_reason, usage)
        )


def _event(name: bytes, fields: bytes = b"") -> bytes:
    return b'event: %b\ndata: {"type":"%b"%b}\n\n' % (name, name, b"," + fields if fields else b"")


def error_body(message: str, status: int) -> bytes:
    """Return the body of an error response, whose type follows from its status."""
    other = "invalid_request_error" if status < 500 else "api_error"
    kind = "overloaded_error" if status in _UNAVAILABLE else _KINDS.get(status, other)
    return json_bytes({"type": "error", "error": {"type": kind, "message": message}})
