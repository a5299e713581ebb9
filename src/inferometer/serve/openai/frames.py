"""The JSON of responses: whole bodies, and server-sent events in HTTP chunks.

A class per API says what its events and bodies are; each response has an instance. The content events of a stream
differ only in their text: one is encoded, and what is around its text is used for all. Texts are passed JSON-escaped.
"""

import base64
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from inferometer.serve.http.responses import LAST_CHUNK, chunk

json_bytes = msgspec.json.encode
Json = dict[str, Any]

MESSAGES = b"/v1/messages"
_MARK = b"\0"  # never part of JSON
_MARKED = Raw(b'"\0"')


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


Format = Completion | Message
FORMATS: dict[str, type[Format]] = {"completion": Completion, "chat": Chat, "message": Message}


def _choice(text: Json, reason: str | None) -> Json:
    return {"index": 0, **text, "logprobs": None, "finish_reason": reason}


def _stop(reason: str, stopped: str | None) -> Json:
    found = {"length": "max_tokens", "stop": "end_turn" if stopped is None else "stop_sequence"}.get(reason)
    return {"stop_reason": found, "stop_sequence": stopped}


# --- bytes -----------------------------------------------------------------------------------------------------------


def escaped(text: str) -> bytes:
    """Return a text as it stands between the quotes of a JSON string."""
    return json_bytes(text)[1:-1]


def quoted(text: bytes) -> Raw:
    """Return an escaped text as a JSON string."""
    return Raw(b'"' + text + b'"')


def events(*given: Json) -> bytes:
    """Return server-sent events, each in a chunk of its own."""
    return b"".join([chunk(_event(one)) for one in given])


def _event(given: Json) -> bytes:
    if "type" not in given:
        return b"data: %b\n\n" % json_bytes(given)
    return b"event: %b\ndata: %b\n\n" % (given["type"].encode(), json_bytes(given))  # Anthropic's have names


def around(content: Format) -> tuple[bytes, bytes, list[bytes]]:
    """Return what precedes and follows the text in a content event, and the chunk's size line by the text's length."""
    before, _, after = _event(content.content(_MARKED)).partition(_MARK)
    return before, after + b"\r\n", _size_lines(len(before) + len(after))


@cache
def _size_lines(fixed: int) -> list[bytes]:
    return [b"%x\r\n" % (fixed + length) for length in range(512)]


def error_body(message: str, kind: str, code: str) -> bytes:
    """Return the body of an error response of OpenAI's endpoints."""
    return json_bytes({"error": {"message": message, "type": kind, "code": code}})


def tokenize_body(tokens: list[int], max_len: int) -> bytes:
    """Return the response to /tokenize, with vLLM's fields."""
    return json_bytes({"count": len(tokens), "max_model_len": max_len, "tokens": tokens})


def embeddings_body(model: str, vectors: Sequence[np.ndarray], packed: bool, n_in: int) -> bytes:
    """Return the JSON of embeddings: float32 vectors as numbers, or `packed` as base64 of 32-bit floats."""
    values = (base64.b64encode(vector.tobytes()).decode() if packed else vector.tolist() for vector in vectors)
    rows = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
    usage = {"prompt_tokens": n_in, "total_tokens": n_in}
    return json_bytes({"object": "list", "data": rows, "model": model, "usage": usage})
