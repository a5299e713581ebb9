"""The bytes of responses: headers, JSON bodies and SSE chunks in HTTP chunk framing, prebuilt as far as possible.

A content chunk has four pieces: the size line for the text's length, the stream's prefix, the text, the tail. Ids have
a fixed width, so that all streams of a kind share the size lines. No JSON is encoded per token.
"""

import msgspec

from inferometer.serve.http.answers import LAST_CHUNK, chunk

DONE = b"data: [DONE]\n\n"
_TABLE = 4096
"""Text lengths with prebuilt size lines."""

json_bytes = msgspec.json.encode


class Style:
    """One kind of stream (chat or completions) of one model."""

    def __init__(self, model: str, chat: bool) -> None:
        self.chat = chat
        self.id = b"chatcmpl-" if chat else b"cmpl-"
        object_ = b"chat.completion.chunk" if chat else b"text_completion"
        self._head = b'data: {"id":"%b%%016x","object":"%b","created":%%010d,"model":%b,"choices":[' % (
            self.id,
            object_,
            json_bytes(model).replace(b"%", b"%%"),
        )
        self.open = b'{"index":0,"delta":{"content":"' if chat else b'{"index":0,"text":"'
        self.shut = (
            b'"},"logprobs":null,"finish_reason":null}]' if chat else b'","logprobs":null,"finish_reason":null}]'
        )
        self.tail = self.shut + b"}\n\n\r\n"
        fixed = len(self.prefix(0, 0)) + len(self.tail) - 2
        self._sizes = [b"%x\r\n" % (fixed + length) for length in range(_TABLE)]
        self._fixed = fixed

    def prefix(self, n: int, created: int) -> bytes:
        """Return what precedes the text in each chunk of a stream."""
        return self._head % (n, created) + self.open

    def size_line(self, length: int) -> bytes:
        return self._sizes[length] if length < _TABLE else b"%x\r\n" % (self._fixed + length)

    def content(self, prefix: bytes, text: bytes) -> bytes:
        """Return a framed content chunk. The text is already JSON-escaped."""
        return self.size_line(len(text)) + prefix + text + self.tail

    def content_with_usage(self, prefix: bytes, text: bytes, usage: bytes) -> bytes:
        return chunk(prefix + text + self.shut + b',"usage":' + usage + b"}\n\n")

    def opening(self, prefix: bytes, n: int, n_in: int) -> bytes:
        """Return what precedes the content: chat's first chunk, which carries no token."""
        if not self.chat:
            return b""
        head = prefix.removesuffix(self.open)
        return chunk(
            head + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def finish(self, prefix: bytes, usage: bytes | None) -> bytes:
        """Return everything after the content: the finish chunk, the usage chunk, [DONE], the end of the body."""
        head = prefix.removesuffix(self.open)
        empty = b'"delta":{}' if self.chat else b'"text":""'
        events = head + b'{"index":0,' + empty + b',"logprobs":null,"finish_reason":"length"}]}\n\n'
        framed = chunk(events)
        if usage is not None:
            framed += chunk(head + b'],"usage":' + usage + b"}\n\n")
        return framed + chunk(DONE) + LAST_CHUNK

    def error(self, message: str) -> bytes:
        """Return a framed error in the middle of a stream, and its end."""
        return chunk(b"data: " + error_body(message, "server_error", "injected") + b"\n\n") + chunk(DONE) + LAST_CHUNK

    def usage(self, n_in: int, n_out: int, cached: int) -> bytes:
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
            % (n_in, n_out, n_in + n_out, cached)
        )

    def whole(self, model: str, n: int, created: int, text: bytes, usage: bytes) -> bytes:
        """Return the body of a non-streamed response."""
        start = b'{"id":"%b%016x","object":"%b","created":%d,"model":%b,"choices":[{"index":0,' % (
            self.id,
            n,
            b"chat.completion" if self.chat else b"text_completion",
            created,
            json_bytes(model),
        )
        content = b'"message":{"role":"assistant","content":"%b"}' if self.chat else b'"text":"%b"'
        return start + content % text + b',"logprobs":null,"finish_reason":"length"}],"usage":' + usage + b"}"


def error_body(message: str, kind: str, code: str) -> bytes:
    return json_bytes({"error": {"message": message, "type": kind, "code": code}})
