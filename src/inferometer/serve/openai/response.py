"""Responses of the OpenAI endpoints: whole bodies, and server-sent events in HTTP chunks.

A Response collects its text into one body, a Stream sends each piece at once; both stamp the time just before each send().
`begin` is called once the request is accepted, `text` for each piece, then `end` or `fail`. Texts are passed JSON-escaped.
The content events of a stream differ only in their text: one is encoded, and what is around its text is used for all.
"""

import base64
import time
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from inferometer.serve.http import responses
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.responses import LAST_CHUNK, chunk, refuse
from inferometer.serve.models.types import Refused
from inferometer.serve.openai.requests import TextRequest
from inferometer.timing.clock import now
from inferometer.wire.http1_requests import Request

json_bytes = msgspec.json.encode
Json = dict[str, Any]


class Response:
    """A response as one body, and what a stream has in common with it."""

    def __init__(
        self, connection: Connection, request: Request, asked: TextRequest, model: str, n: int, n_in: int = 0
    ) -> None:
        self.connection, self.request, self.asked, self.model = connection, request, asked, model
        self.n, self.n_in, self.created = n, n_in, int(time.time())
        self.started = request.arrived  # when the model began to compute
        self.cached = 0  # tokens of the prompt that it found in its cache
        self.stopped: str | None = None  # the stop text that ended the text
        self.written = 0  # tokens of the text so far
        self.stamps = array("q")  # when each content chunk, or the body, was sent, in monotonic ns
        self.keep_alive = request.keep_alive  # whether the connection stays open after the response
        self.write = connection.write
        self._format = _ANTHROPIC if asked.api == "message" else _OPENAI
        self._has_begun = False

    def begin(self) -> None:
        self._pieces: list[bytes] = []

    def text(self, text: bytes, count: int) -> None:
        """Add the text of `count` tokens of each choice."""
        self.written += count * self.asked.choices
        self._pieces.append(text)

    def end(self, reason: str, text: bytes = b"", count: int = 0) -> None:
        """Complete the response, with the text of the last `count` tokens, if there is some, in the same send()."""
        self.text(text, count)
        self.send(json_bytes(self._format.body(self, _quoted(b"".join(self._pieces)), reason)))

    def send(self, body: bytes) -> None:
        """Send a body with status 200."""
        sent, arrived, started = now(), self.request.arrived, self.started
        self.stamps.append(sent)
        timing = responses.timing(max(started - arrived, 0), sent - started, sent - arrived)
        keep = self.request.keep_alive
        self.write(responses.head(200, len(body), keep_alive=keep, extra=timing) + body)
        self.finish()

    def finish(self) -> None:
        """Continue with the next request of the connection, or close it."""
        self.connection.finish(self.keep_alive)

    def fail(self, refused: Refused) -> None:
        """End a stream that has begun with an error event; otherwise, send an error response, if the client is there."""
        if self.connection.transport.closed:
            self.finish()
        elif self._has_begun:
            self.write(_events(responses.error(self.request.path, refused)) + self._format.done)
            self.finish()
        else:
            refuse(self.connection, self.request, refused)


class Stream(Response):
    """A response as server-sent events."""

    def begin(self) -> None:
        """Send the headers. What precedes the text is sent with its first piece, as vLLM does."""
        self._has_begun, self._closing, self._opening = True, b"", _events(*self._format.opening(self))
        # What precedes and follows the text in a content event, and the chunk's size line by the text's length.
        sample = _event(self._format.content(self, _quoted(b"\0")))
        self._before, _, after = sample.partition(b"\0")  # which is never part of JSON
        self._after, lines = after + b"\r\n", _size_lines(len(self._before) + len(after))
        self._sizes, self._alike = list[bytes](), [] if self.asked.running_usage or self.asked.choices > 1 else lines
        self.write = responses.start_stream(self.write, self.request)

    def text(self, text: bytes, count: int) -> None:
        """Send the text of `count` tokens of each choice."""
        self.written += count * self.asked.choices
        try:
            data = self._sizes[len(text)] + self._before + text + self._after
        except IndexError:  # the first piece, usage in every chunk, several choices, or a long text
            quoted = _quoted(text)
            events = [self._format.content(self, quoted, index) for index in range(self.asked.choices)]
            data = self._opening + _events(*events) + self._closing
            self._opening, self._sizes = b"", self._alike
        self.stamps.append(now())
        self.write(data)

    def end(self, reason: str, text: bytes = b"", count: int = 0) -> None:
        self.written += count * self.asked.choices
        self._closing = _events(*self._format.closing(self, reason)) + self._format.done
        if text:
            self._after += self._closing  # both in one send()
            self.text(text, 0)
        else:
            self.write(self._opening + self._closing)
        self.finish()


class OpenAiFormat:
    """The JSON of completions and chat completions."""

    done = chunk(b"data: [DONE]\n\n") + LAST_CHUNK
    """What follows the last event."""

    def opening(self, out: Response) -> list[Json]:
        """Return the events before the text."""
        role = {"role": "assistant", "content": ""}
        indices = range(out.asked.choices if out.asked.api == "chat" else 0)
        return [self._json(out, "delta", role, None, False, index) for index in indices]

    def content(self, out: Response, text: Raw, index: int = 0) -> Json:
        """Return the event of a part of the text of a choice."""
        return self._json(out, "delta", {"content": text}, None, out.asked.running_usage, index)

    def closing(self, out: Response, reason: str) -> list[Json]:
        """Return the events after the text."""
        ends = [self._json(out, "delta", {}, reason, False, index) for index in range(out.asked.choices)]
        return [*ends, {**ends[0], "choices": [], "usage": self._usage(out)}] if out.asked.usage else ends

    def body(self, out: Response, text: Raw, reason: str) -> Json:
        """Return the body of a response that is not streamed."""
        made = self._json(out, "message", {"role": "assistant", "content": text}, reason, True)
        made["choices"] = [{**made["choices"][0], "index": index} for index in range(out.asked.choices)]
        return made

    def _json(
        self, out: Response, kind: str, message: Json, reason: str | None, has_usage: bool, index: int = 0
    ) -> Json:
        """Return an event or a body. In a chat, `message` is the value of `kind`; completions have only its text."""
        if out.asked.api == "chat":
            prefix, name, text = "chatcmpl-", "chat.completion", {kind: message}
            name += ".chunk" if kind == "delta" else ""
        else:
            prefix, name, text = "cmpl-", "text_completion", {"text": message.get("content", "")}
        made: Json = {"id": f"{prefix}{out.n:016x}", "object": name, "created": out.created, "model": out.model}
        made["choices"] = [{"index": index, **text, "logprobs": None, "finish_reason": reason}]
        if has_usage:
            made["usage"] = self._usage(out)
        return made

    def _usage(self, out: Response) -> Json:
        counts = {"prompt_tokens": out.n_in, "completion_tokens": out.written, "total_tokens": out.n_in + out.written}
        return {**counts, "prompt_tokens_details": {"cached_tokens": out.cached}}


class AnthropicFormat:
    """The JSON of Anthropic's messages, with the same methods."""

    done = LAST_CHUNK

    def opening(self, out: Response) -> list[Json]:
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return [{"type": "message_start", "message": self.body(out, _quoted(b""), "")}, block, {"type": "ping"}]

    def content(self, out: Response, text: Raw, index: int = 0) -> Json:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}

    def closing(self, out: Response, reason: str) -> list[Json]:
        delta = {"type": "message_delta", "delta": self._stop(out, reason), "usage": self._usage(out)}
        return [{"type": "content_block_stop", "index": 0}, delta, {"type": "message_stop"}]

    def body(self, out: Response, text: Raw, reason: str) -> Json:
        head = {"id": f"msg_{out.n:016x}", "type": "message", "role": "assistant", "model": out.model}
        content = [{"type": "text", "text": text}] if text != _quoted(b"") else []
        return {**head, "content": content, **self._stop(out, reason), "usage": self._usage(out)}

    def _stop(self, out: Response, reason: str) -> Json:
        found = {"length": "max_tokens", "stop": "end_turn" if out.stopped is None else "stop_sequence"}.get(reason)
        return {"stop_reason": found, "stop_sequence": out.stopped}

    def _usage(self, out: Response) -> Json:
        fresh = out.n_in - out.cached
        counts = {"input_tokens": fresh, "cache_creation_input_tokens": 0, "cache_read_input_tokens": out.cached}
        return {**counts, "output_tokens": out.written}


_OPENAI, _ANTHROPIC = OpenAiFormat(), AnthropicFormat()


def _quoted(text: bytes) -> Raw:
    """Return an escaped text as a JSON string."""
    return Raw(b'"' + text + b'"')


def _events(*given: Json) -> bytes:
    """Return server-sent events, each in a chunk of its own."""
    return b"".join([chunk(_event(one)) for one in given])


def _event(given: Json) -> bytes:
    if "type" not in given:
        return b"data: %b\n\n" % json_bytes(given)
    return b"event: %b\ndata: %b\n\n" % (given["type"].encode(), json_bytes(given))  # Anthropic's have names


@cache
def _size_lines(fixed: int) -> list[bytes]:
    return [b"%x\r\n" % (fixed + length) for length in range(512)]


def tokens_body(tokens: list[int], max_len: int) -> bytes:
    """Return the JSON of /tokenize, with vLLM's fields."""
    return json_bytes({"count": len(tokens), "max_model_len": max_len, "tokens": tokens})


def embeddings_body(model: str, vectors: Sequence[bytes | np.ndarray], encoding: str, n_in: int) -> bytes:
    """Return the JSON of embeddings: vectors of float32 as numbers, or as base64."""
    packed, numbers = encoding == "base64", [np.frombuffer(vector, np.float32) for vector in vectors]
    values = (base64.b64encode(vector.tobytes()).decode() if packed else vector.tolist() for vector in numbers)
    rows = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
    usage = {"prompt_tokens": n_in, "total_tokens": n_in}
    return json_bytes({"object": "list", "data": rows, "model": model, "usage": usage})
