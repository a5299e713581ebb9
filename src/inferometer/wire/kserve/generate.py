"""Triton's generate extension: text in, text out, in one piece or as server-sent events.

A message with text counts as a chunk of one token; models send an empty message at the end. There is no [DONE]: the stream
ends with the body. After the first message, the server can report an error only inside the stream. The server does not
count tokens: `text` keeps the generated text, so that the model's tokenizer can count them after the run. A complete response
without any text is the failure `empty`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from inferometer.types import ONE_TOKEN, Event, Fail
from inferometer.wire.http1 import error_message, not_json
from inferometer.wire.kserve.http_control import model_path
from inferometer.wire.openai import StreamedResponse


def generate_path(model: str, version: str = "", stream: bool = False) -> str:
    return model_path(model, version) + ("/generate_stream" if stream else "/generate")


def request_body(
    prompt: str, max_tokens: int = 0, stream: bool = False, extra: Mapping[str, object] | None = None
) -> bytes:
    """Encode the JSON body; `max_tokens` 0 leaves the length to the model, and `extra` overrides everything else."""
    body: dict[str, object] = {"text_input": prompt}
    if max_tokens:
        body["max_tokens"] = max_tokens
    body["stream"] = stream
    return msgspec.json.encode(body | dict(extra or {}))


class _GenerateJson(msgspec.Struct, gc=False):
    text_output: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_GenerateJson).decode


def _text(output: Any) -> str:
    """The text of an output; an output with several elements is a list."""
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return "".join(map(_text, output))
    return "" if output is None else str(output)


class StreamedText(StreamedResponse):
    """The body of a streamed response: server-sent events as OpenAI's API uses them, with different messages."""

    __slots__ = ()

    def _incomplete(self) -> Fail | None:
        return None if self._messages else _not_a_stream(self._head)

    def _empty(self) -> Fail | None:
        return Fail("empty", f"messages: {self._messages}, none of them with text")

    def _message(self, name: bytes, data: bytes, events: list[Event]) -> None:
        self._messages += 1
        if name == b"error":
            events.append(Fail("error_frame", error_message(data)))
            return
        try:
            message = _decode(data)
        except msgspec.MsgspecError as error:
            events.append(not_json(data, str(error)))
            return
        if message.error is not None:
            events.append(Fail("error_frame", error_message(data)))
            return
        text = _text(message.text_output)
        if text:
            self._texts.append(text)
            events.append(ONE_TOKEN)


class UnstreamedText:
    """The body of a response that is not streamed."""

    __slots__ = ("_body", "_text")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._body = b""
        self._text = ""

    @property
    def text(self) -> str:
        return self._text

    def feed(self, piece: bytes, events: list[Event]) -> None:
        self._body += piece

    def finish(self, events: list[Event]) -> Fail | None:
        body = self._body
        if not body.strip():
            return Fail("truncated", "the body is empty")
        try:
            response = _decode(body)
        except msgspec.MsgspecError as error:
            return not_json(body, str(error))
        if response.error is not None:
            return Fail("error_body", error_message(body))
        if response.text_output is None:
            return not_json(body, "no text_output")
        self._text = _text(response.text_output)
        return None if self._text else Fail("empty", "text_output is empty")


def _not_a_stream(head: bytes) -> Fail:
    """Describe a body that is not an event stream."""
    if not head.strip():
        return Fail("truncated", "the body is empty")
    try:
        response = _decode(head)
    except msgspec.MsgspecError as error:
        return not_json(head, str(error))
    if response.text_output is not None and response.error is None:
        return Fail("not_streamed", "")
    return Fail("error_body", error_message(head))
