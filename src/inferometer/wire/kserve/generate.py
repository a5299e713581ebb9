"""Triton's generate extension: text in, text out, in one piece or as server-sent events.

A message with text is one token's chunk; models send an empty one at their end. There is no [DONE]: a stream is over when
the body is. After the first message an error can only come inside the stream. Tokens are not counted by the server: `text`
keeps the answer, to be counted after the run.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from inferometer.types import ONE_TOKEN, Event, Fail
from inferometer.wire.http1 import error_message, not_json
from inferometer.wire.kserve.control import model_path
from inferometer.wire.openai import StreamedResponse


def generate_path(model: str, version: str = "", stream: bool = False) -> str:
    return model_path(model, version) + ("/generate_stream" if stream else "/generate")


def request_body(
    prompt: str, max_tokens: int = 0, stream: bool = False, extra: Mapping[str, object] | None = None
) -> bytes:
    """The JSON to post; 0 leaves the length to the model, and `extra` has the last word."""
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
    """An output of several elements is a list of them."""
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return "".join(map(_text, output))
    return "" if output is None else str(output)


class StreamedText(StreamedResponse):
    """The body of a streamed answer: events as of OpenAI's, which mean something else."""

    __slots__ = ()

    def _incomplete(self) -> Fail | None:
        return None if self._messages else _not_a_stream(self._head)

    def _message(self, name: bytes, data: bytes, events: list[Event]) -> None:
        self._messages += 1
        if name == b"error":
            events.append(Fail("error_frame", error_message(data)))
            return
        try:
            answer = _decode(data)
        except msgspec.MsgspecError as error:
            events.append(not_json(data, str(error)))
            return
        if answer.error is not None:
            events.append(Fail("error_frame", error_message(data)))
            return
        text = _text(answer.text_output)
        if text:
            self._texts.append(text)
            events.append(ONE_TOKEN)


class WholeText:
    """The body of an answer in one piece."""

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
            answer = _decode(body)
        except msgspec.MsgspecError as error:
            return not_json(body, str(error))
        if answer.error is not None:
            return Fail("error_body", error_message(body))
        if answer.text_output is None:
            return not_json(body, "no text_output")
        self._text = _text(answer.text_output)
        return None


def _not_a_stream(head: bytes) -> Fail:
    """What came in place of an event stream."""
    if not head.strip():
        return Fail("truncated", "the body is empty")
    try:
        answer = _decode(head)
    except msgspec.MsgspecError as error:
        return not_json(head, str(error))
    if answer.text_output is not None and answer.error is None:
        return Fail("not_streamed", "")
    return Fail("error_body", error_message(head))
