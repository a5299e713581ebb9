"""Responses of the OpenAI endpoints: whole bodies, and server-sent events in HTTP chunks.

A class per API says what its events and bodies are; each response has an instance. The content events of a stream
differ only in their text: one is encoded, and what is around its text is used for all. Texts are passed JSON-escaped.

A Stream sends each piece of text at once, a Whole collects them into one body; both stamp the time just before each
send(). They have the same methods: `begin` once the request is accepted, `text` for each piece, then `end` or `fail`.
"""

import base64
import time
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

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

_MARK = b"\0"  # never part of JSON
_MARKED = Raw(b'"\0"')

# --- formats ---------------------------------------------------------------------------------------------------------


class Completion:
    """A response of OpenAI's completions."""

    done = chunk(b"data: [DONE]\n\n") + LAST_CHUNK
    """What follows the last event."""
    id, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, n: int) -> None:
        self._head = {"id": f"{self.id}-{n:016x}", "object": self.object, "created": int(time.time()), "model": model}

    def opening(self, n_in: int) -> list[Json]:
        """Return the events before the text."""
        return []

    def content(self, text: Raw, usage: Json | None = None) -> Json:
        """Return the event of a part of the text."""
        return self._event([_choice(self._part(text), None)], usage)

    def closing(self, reason: str, usage: Json | None, stopped: str | None) -> list[Json]:
        """Return the events after the text; `stopped` is the stop text that ended it."""
        end = self._event([_choice(self._part(None), reason)], None)
        return [end] if usage is None else [end, self._event([], usage)]

    def body(self, text: Raw, reason: str, usage: Json, stopped: str | None) -> Json:
        """Return the body of a response that is not streamed."""
        return {**self._head, "choices": [_choice(self._whole(text), reason)], "usage": usage}

    def usage(self, n_in: int, n_out: int, cached: int) -> Json:
        counts = {"prompt_tokens": n_in, "completion_tokens": n_out, "total_tokens": n_in + n_out}
        return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}

    def _event(self, choices: list[Json], usage: Json | None) -> Json:
        event = {**self._head, "object": self.chunk_object, "choices": choices}
        return event if usage is None else {**event, "usage": usage}

    def _part(self, text: Raw | None) -> Json:
        return {"text": "" if text is None else text}

    _whole = _part


class Chat(Completion):
    """A response of OpenAI's chat completions."""

    id, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, n_in: int) -> list[Json]:
        return [self._event([_choice({"delta": {"role": "assistant", "content": ""}}, None)], None)]

    def _part(self, text: Raw | None) -> Json:
        return {"delta": {} if text is None else {"content": text}}

    def _whole(self, text: Raw | None) -> Json:
        return {"message": {"role": "assistant", "content": text}}


class Message:
    """A response of Anthropic's Messages API."""

    done = LAST_CHUNK

    def __init__(self, model: str, n: int) -> None:
        self._head = {"id": f"msg_{n:016x}", "type": "message", "role": "assistant", "model": model}

    def opening(self, n_in: int) -> list[Json]:
        message: Json = self._head | {"content": []} | _stop("", None) | {"usage": self.usage(n_in, 0, 0)}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return [{"type": "message_start", "message": message}, block, {"type": "ping"}]

    def content(self, text: Raw, usage: Json | None = None) -> Json:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}

    def closing(self, reason: str, usage: Json | None, stopped: str | None) -> list[Json]:
        delta = {"type": "message_delta", "delta": _stop(reason, stopped), "usage": usage}
        return [{"type": "content_block_stop", "index": 0}, delta, {"type": "message_stop"}]

    def body(self, text: Raw, reason: str, usage: Json, stopped: str | None) -> Json:
        content = [{"type": "text", "text": text}] if text != Raw(b'""') else []
        return self._head | {"content": content} | _stop(reason, stopped) | {"usage": usage}

    def usage(self, n_in: int, n_out: int, cached: int) -> Json:
        """Return the usage. `input_tokens` are those that were not read from the cache."""
        counts = {"input_tokens": n_in - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
        return {**counts, "output_tokens": n_out}


_FORMATS: dict[str, type[Completion | Message]] = {"completion": Completion, "chat": Chat, "message": Message}


def _choice(text: Json, reason: str | None) -> Json:
    return {"index": 0, **text, "logprobs": None, "finish_reason": reason}


def _stop(reason: str, stopped: str | None) -> Json:
    found = {"length": "max_tokens", "stop": "end_turn" if stopped is None else "stop_sequence"}.get(reason)
    return {"stop_reason": found, "stop_sequence": stopped}


# --- responses -------------------------------------------------------------------------------------------------------


class Response:
    """What streams and whole responses have in common."""

    def __init__(
        self, connection: Connection, request: Request, asked: TextRequest, model: str, n: int, n_in: int = 0
    ) -> None:
        self.connection, self.request, self.asked, self.n, self.n_in = connection, request, asked, n, n_in
        self.started, self.cached = request.arrived, 0
        """When the model began to compute, and how many tokens of the prompt it found in its cache."""
        self.stopped: str | None = None
        """The stop text that ended the text."""
        self.written = 0
        """Tokens of the text so far."""
        self.stamps = array("q")
        """When each content chunk, or the body, was sent, in monotonic ns."""
        self.keep_alive = request.keep_alive
        """Whether the connection stays open after the response."""
        self.write = connection.write
        self._format = _FORMATS.get(asked.api, Completion)(model, n)
        self._has_begun = False

    def usage(self) -> Json:
        return self._format.usage(self.n_in, self.written, self.cached)

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
        """Send the headers, with what precedes the text."""
        self._has_begun = True
        # What precedes and follows the text in a content event, and the chunk's size line by the text's length.
        self._before, _, after = _event(self._format.content(_MARKED)).partition(_MARK)
        self._after, self._sizes = after + b"\r\n", _size_lines(len(self._before) + len(after))
        if self.asked.running_usage:
            self._sizes = []  # no chunk is like the others
        self.write(responses.stream_head(self.request.keep_alive) + _events(*self._format.opening(self.n_in)))

    def text(self, text: bytes, count: int) -> None:
        """Send the text of `count` tokens."""
        self.written += count
        try:
            data = self._sizes[len(text)] + self._before + text + self._after
        except IndexError:  # usage in every chunk, or a long text
            data = self._content(text)
        self.stamps.append(now())
        self.write(data)

    def end(self, reason: str, text: bytes = b"", count: int = 0) -> None:
        """Complete the response, with the text of the last `count` tokens, if there is some, in the same send()."""
        self.written += count
        data = self._content(text) if text else b""
        closing = self._format.closing(reason, self.usage() if self.asked.usage else None, self.stopped)
        data += _events(*closing) + self._format.done
        if text:
            self.stamps.append(now())
        self.write(data)
        self.finish()

    def _content(self, text: bytes) -> bytes:
        return _events(self._format.content(_quoted(text), self.usage() if self.asked.running_usage else None))


class Whole(Response):
    """A response as one body."""

    def begin(self) -> None:
        self._pieces: list[bytes] = []

    def text(self, text: bytes, count: int) -> None:
        """Add the text of `count` tokens."""
        self.written += count
        self._pieces.append(text)

    def end(self, reason: str, text: bytes = b"", count: int = 0) -> None:
        """Send the body, with the text of the last `count` tokens."""
        self.text(text, count)
        text = b"".join(self._pieces)
        self.send(json_bytes(self._format.body(_quoted(text), reason, self.usage(), self.stopped)))


# --- bytes -----------------------------------------------------------------------------------------------------------


def escaped(text: str) -> bytes:
    """Return a text as it stands between the quotes of a JSON string."""
    return json_bytes(text)[1:-1]


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


def embeddings_body(
    model: str, vectors: Sequence[bytes | np.ndarray], encoding: Literal["float", "base64"], n_in: int
) -> bytes:
    """Return the JSON of embeddings: vectors of float32 as numbers, or as base64."""
    packed, numbers = encoding == "base64", [np.frombuffer(vector, np.float32) for vector in vectors]
    values = (base64.b64encode(vector.tobytes()).decode() if packed else vector.tolist() for vector in numbers)
    rows = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
    usage = {"prompt_tokens": n_in, "total_tokens": n_in}
    return json_bytes({"object": "list", "data": rows, "model": model, "usage": usage})
