"""Anthropic's Messages API, streamed or not: request bodies, and what responses mean.

The system prompt is a field of its own. `max_tokens` is required: requests that leave the length to the server get
_DEFAULT_MAX_TOKENS.

A stream is a message with content blocks. A token is a piece of text, of reasoning (`thinking`) or of a tool call; the events that
open and close blocks carry none, except that of a tool call, which carries its name, and that of redacted reasoning. A chunk counts
as one token. The totals are the usage in `message_start`, updated by that in `message_delta`. `input_tokens` does not include tokens
read from or written to the prompt cache, which our count of input tokens does.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from inferometer.types import ONE_REASONING_TOKEN, ONE_TOKEN, Calls, Event, Fail, Messages, Request, Usage
from inferometer.wire.context import CallContext, model_of
from inferometer.wire.failures import bounded
from inferometer.wire.history import SYSTEM_ROLES, joined
from inferometer.wire.http1 import BodyDecoder, ResponseDecoder, error_message, not_json, tail
from inferometer.wire.openai import post
from inferometer.wire.sse import EventStream

_DEFAULT_MAX_TOKENS = 1024


def encode(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode requests to `/v1/messages`."""
    heads, class_heads, tails = post(context, requests, [request_body(context, request) for request in requests])
    return Calls(
        heads=heads,
        class_heads=class_heads,
        tails=tails,
        n_in=tuple(request.n_in or -1 for request in requests),
        n_out=tuple(request.n_out for request in requests),
        decoder=partial(_response_decoder, context.stream),
    )


def encode_tail(context: CallContext, request: Request) -> bytes:
    """Encode one request as a tail of Calls."""
    return tail(request.options.headers, request_body(context, request))


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


def body_decoder(streamed: bool) -> BodyDecoder:
    """Make the decoder of one response body."""
    return StreamedMessage() if streamed else WholeMessage()


def _response_decoder(streamed: bool) -> ResponseDecoder:
    return ResponseDecoder(body_decoder(streamed))


def content_of(response: ResponseDecoder) -> str:
    """The text of a response that a client sends back in the next turn."""
    body = response.body
    assert isinstance(body, StreamedMessage | WholeMessage)
    return body.content


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


def _empty(stop_reason: str | None, usage: _Usage | None) -> Fail | None:
    """The failure of a complete response without a token, unless the server counted some."""
    generated = None if usage is None else usage.output_tokens
    if generated:
        return None
    reported = "no usage" if generated is None else f"output_tokens {generated}"
    return Fail("empty", bounded(f"stop_reason {stop_reason or 'missing'}, {reported}"))


# --- the two kinds of response -----------------------------------------------------------------------------------------


class StreamedMessage:
    """The body of a streamed response."""

    __slots__ = (
        "_content",
        "_ended",
        "_has_content",
        "_head",
        "_messages",
        "_stop_reason",
        "_stream",
        "_texts",
        "_usage",
    )

    def __init__(self) -> None:
        self._stream = EventStream()
        self.reset()

    def reset(self) -> None:
        self._stream.reset()
        self._texts: list[str] = []
        self._content: list[str] = []  # what a client sends back: neither reasoning nor tool calls
        self._has_content = False  # a chunk has arrived that carries more than reasoning
        self._usage: _Usage | None = None
        self._ended = False
        self._stop_reason: str | None = None
        self._messages = 0
        self._head = b""  # the start of a body that is not an event stream, for the error message

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def finish_reason(self) -> str | None:
        return self._stop_reason

    def feed(self, piece: bytes, events: list[Event]) -> None:
        for name, data in self._stream.feed(piece):
            self._message(name, data, events)
        if not self._messages and len(self._head) < 4096:
            self._head += piece

    def finish(self, events: list[Event]) -> Fail | None:
        for name, data in self._stream.finish():
            self._message(name, data, events)
        if events and isinstance(events[-1], Fail):
            return events.pop()  # type: ignore[return-value]
        if not self._ended:
            return Fail("truncated", "") if self._messages else _not_a_stream(self._head)
        return None if self._texts else _empty(self._stop_reason, self._usage)

    def _message(self, name: bytes, data: bytes, events: list[Event]) -> None:
        self._messages += 1
        if name == b"error":
            events.append(Fail("error_frame", error_message(data)))
            return
        try:
            event = _decode_event(data)
        except msgspec.MsgspecError as error:
            if data == b"[DONE]":  # from servers that offer OpenAI's API, too
                self._ended = True
                return
            events.append(Fail("malformed_json", bounded(f"{error}: {data[:200].decode('utf-8', 'replace')}")))
            return
        block = event.delta or event.content_block
        if event.type in ("content_block_delta", "content_block_start"):
            if block is not None:
                self._token(block, events)
        elif event.type == "message_start":
            if event.message is not None and event.message.usage is not None:
                self._usage = event.message.usage
        elif event.type == "message_delta":
            self._delta(event, events)
        elif event.type == "message_stop":
            self._ended = True
        elif event.type == "error" or event.error is not None:
            events.append(Fail("error_frame", error_message(data)))

    def _token(self, block: _Block, events: list[Event]) -> None:
        text = _text(block)
        if not text:
            return
        self._texts.append(text)
        if block.text:
            self._content.append(block.text)
        self._has_content = self._has_content or block.type not in _REASONING
        events.append(ONE_TOKEN if self._has_content else ONE_REASONING_TOKEN)

    def _delta(self, event: _EventJson, events: list[Event]) -> None:
        """Take the end of the message: why it ended, and its usage."""
        if event.delta is not None and event.delta.stop_reason is not None:
            self._stop_reason = event.delta.stop_reason
        if event.usage is not None:
            self._usage = _merged(self._usage, event.usage)
        if self._usage is not None:
            events.append(_usage(self._usage, self._stop_reason))


class WholeMessage:
    """The body of a response that is not streamed."""

    __slots__ = ("_body", "_message")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._body = b""
        self._message: _Message | None = None

    @property
    def text(self) -> str:
        return "".join(map(_text, self._blocks))

    @property
    def content(self) -> str:
        return "".join(block.text or "" for block in self._blocks)

    @property
    def finish_reason(self) -> str | None:
        return self._message.stop_reason if self._message is not None else None

    @property
    def _blocks(self) -> list[_Block]:
        return (self._message and self._message.content) or []

    def feed(self, piece: bytes, events: list[Event]) -> None:
        self._body += piece

    def finish(self, events: list[Event]) -> Fail | None:
        body = self._body
        try:
            message = _decode_message(body)
        except msgspec.MsgspecError as error:
            return not_json(body, str(error))
        if message.type == "error" or message.error is not None:
            return Fail("error_body", error_message(body))
        if message.content is None:
            return Fail("malformed_json", bounded(f"no content: {body[:200].decode('utf-8', 'replace')}"))
        self._message = message
        if message.usage is not None:
            events.append(_usage(message.usage, None))
        return None if self.text else _empty(message.stop_reason, message.usage)


def _not_a_stream(head: bytes) -> Fail:
    """The failure of a body that is not the expected event stream."""
    try:
        message = _decode_message(head)
    except msgspec.MsgspecError as error:
        return not_json(head, str(error)) if head.strip() else Fail("truncated", "the body is empty")
    if message.type != "error" and message.error is None and message.content is not None:
        return Fail("not_streamed", "")
    return Fail("error_body", error_message(head))
