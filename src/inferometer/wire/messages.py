"""Anthropic's Messages API, streamed or not: request bodies, and what responses mean.

The system prompt is a field of its own. `max_tokens` is required: requests that leave the length to the server get
_DEFAULT_MAX_TOKENS.

A stream is a message with content blocks. A token is a piece of text, of reasoning (`thinking`) or of a tool call; the events that
open and close blocks carry none, except that of a tool call, which carries its name, and that of redacted reasoning. A chunk counts
as one token. The totals are the usage in `message_start`, updated by that in `message_delta`. `input_tokens` does not include tokens
read from or written to the prompt cache, which our count of input tokens does.
"""

from functools import partial
from typing import Any

import msgspec

from inferometer.types import Fail, Messages, Received, Request, Usage
from inferometer.wire import text_body
from inferometer.wire.context import CallContext, model_of
from inferometer.wire.failures import bounded, excerpt
from inferometer.wire.history import SYSTEM_ROLES, joined
from inferometer.wire.http1 import error_message

_DEFAULT_MAX_TOKENS = 1024


def request_body(context: CallContext, request: Request) -> bytes:
    """The JSON to post. The fields of `server.body` override all others, except those that a request has of its own."""
    payload = request.payload
    if isinstance(
        payload, msgspec.Raw
    ):  # a later turn of a session: an object with `messages` and `system` (history.py)
        return msgspec.json.encode(_options(context, request))[:-1] + b"," + bytes(payload)[1:]
    messages: Messages = [{"role": "user", "content": payload}] if isinstance(payload, str) else payload  # type: ignore[assignment]
    system = joined([message for message in messages if message.get("role") in SYSTEM_ROLES])
    prompt: dict[str, object] = {"messages": [each for each in messages if each.get("role") not in SYSTEM_ROLES]}
    if system:
        prompt["system"] = system
    return msgspec.json.encode(prompt | _options(context, request))


def _options(context: CallContext, request: Request) -> dict[str, object]:
    options: dict[str, object] = {
        "model": model_of(context, request),
        "max_tokens": request.n_out or _DEFAULT_MAX_TOKENS,
    }
    if context.stream:
        options["stream"] = True
    if context.ignore_eos:
        options["ignore_eos"] = True
    options |= context.body | request.options.body
    # Data that was recorded for OpenAI's API may have its name for the limit.
    limit = options.pop("max_completion_tokens", None)
    return options | ({} if limit is None or "max_tokens" in request.options.body else {"max_tokens": limit})


# --- the parts of the JSON that are read ----------------------------------------------------------------------------------


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Block(msgspec.Struct, gc=False):
    """A content block, or what a delta adds to one; of `message_delta`, the message's own fields."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Message(msgspec.Struct, gc=False):
    type: str = ""
    content: list[_Block] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
    error: Any = None


class _EventJson(msgspec.Struct, gc=False):
    type: str = ""
    delta: _Block | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_EventJson).decode
_decode_message = msgspec.json.Decoder(_Message).decode

_REASONING = frozenset(("thinking", "thinking_delta", "redacted_thinking"))
_UNSENT = frozenset(("tool_use", "server_tool_use", "redacted_thinking"))
"""Blocks whose start carries tokens although it has no text: the name of a tool, or encrypted reasoning."""


def _text(block: _Block) -> str:
    """The text of a block or a delta; "+" stands for a tool call, whose text is not assembled here."""
    if block.text:
        return block.text
    if block.thinking:
        return block.thinking
    return "+" if block.partial_json or block.type in _UNSENT else ""


def _merged(known: _Usage | None, new: _Usage) -> _Usage:
    """The usage with what is new in it: counts are cumulative, and an event may leave some out."""
    if known is None:
        return new
    return _Usage(
        *(
            earlier if later is None else later
            for earlier, later in zip(msgspec.structs.astuple(known), msgspec.structs.astuple(new), strict=True)
        )
    )


def _usage(usage: _Usage, stop_reason: str | None) -> Usage:
    cached = usage.cache_read_input_tokens
    n_in = usage.input_tokens
    if n_in is not None:
        n_in += (cached or 0) + (usage.cache_creation_input_tokens or 0)
    return Usage(
        -1 if n_in is None else n_in,
        -1 if usage.output_tokens is None else usage.output_tokens,
        -1 if cached is None else cached,
        is_stopped=stop_reason is not None and stop_reason != "max_tokens",
    )


# --- what a response means ---------------------------------------------------------------------------------------------


def _event(data: bytes, at: int, into: Received) -> Fail | None:
    """Take the data of an event."""
    event = _decode_event(data)
    block = event.delta or event.content_block
    if event.type in ("content_block_delta", "content_block_start"):
        text = "" if block is None else _text(block)
        if block is not None and text:
            into.token(at, text, block.text or "", block.type not in _REASONING)
    elif event.type == "message_start":
        if event.message is not None and event.message.usage is not None:
            into.partial_usage = event.message.usage
    elif event.type == "message_delta":
        _take_end(event, into)
    elif event.type == "message_stop":
        into.is_ended = True
    elif event.type == "error" or event.error is not None:
        return Fail("error_frame", error_message(data))
    return None


def _take_end(event: _EventJson, into: Received) -> None:
    """Take the end of the message: why it ended, and its usage."""
    if event.delta is not None and event.delta.stop_reason is not None:
        into.finish_reason = event.delta.stop_reason
    if event.usage is not None:
        into.partial_usage = _merged(into.partial_usage, event.usage)
    if into.partial_usage is not None:
        into.usage = _usage(into.partial_usage, into.finish_reason)


def _whole(body: bytes, into: Received) -> Fail | None:
    """Take a response that is not streamed."""
    message = _decode_message(body)
    if message.type == "error" or message.error is not None:
        return Fail("error_body", error_message(body))
    if message.content is None:
        return Fail("malformed_json", bounded(f"no content: {excerpt(body)}"))
    for block in message.content:
        text = _text(block)
        if text:
            into.add_text(text, block.text or "")
    into.finish_reason = message.stop_reason
    if message.usage is not None:
        into.usage = _usage(message.usage, None)
    return None


EXTRACTOR = text_body.Extractor(_event, _whole, partial(text_body.empty, reason="stop_reason", count="output_tokens"))
