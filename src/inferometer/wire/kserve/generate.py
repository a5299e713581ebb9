"""Triton's generate extension: text in, text out, in one piece or as server-sent events.

A message with text counts as a chunk of one token; models send an empty message at the end. There is no [DONE]: the stream
ends with the body. After the first message, the server can report an error only inside the stream. The server does not
count tokens: `text` keeps the generated text, so that the model's tokenizer can count them after the run. A complete response
without any text is the failure `empty`.
"""

from typing import Any

import msgspec

from inferometer.types import Fail, Received, Request
from inferometer.wire import text_body
from inferometer.wire.context import CallContext, prompt_text
from inferometer.wire.http1 import error_message, not_json
from inferometer.wire.kserve.control_requests import model_path


def generate_path(model: str, version: str = "", stream: bool = False) -> str:
    return model_path(model, version) + ("/generate_stream" if stream else "/generate")


def request_body(context: CallContext, request: Request) -> bytes:
    """The JSON to post. The parameters and fields of the `server` section override the others, except those of the request."""
    body: dict[str, object] = {"text_input": prompt_text(request)}
    if request.n_out:  # otherwise the length is left to the model
        body["max_tokens"] = request.n_out
    body["stream"] = context.stream
    return msgspec.json.encode(body | context.parameters | context.body | request.options.body)


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


def _event(data: bytes, at: int, into: Received) -> Fail | None:
    message = _decode(data)
    if message.error is not None:
        return Fail("error_frame", error_message(data))
    text = _text(message.text_output)
    if text:
        into.token(at, text, text)
    return None


def _whole(body: bytes, into: Received) -> Fail | None:
    response = _decode(body)
    if response.error is not None:
        return Fail("error_body", error_message(body))
    if response.text_output is None:
        return not_json(body, "no text_output")
    text = _text(response.text_output)
    if text:
        into.add_text(text, text)
    return None


def _empty(into: Received) -> Fail | None:
    return Fail(
        "empty", f"messages: {into.messages}, none of them with text" if into.messages else "text_output is empty"
    )


EXTRACTOR = text_body.Extractor(_event, _whole, _empty, has_end=False)
