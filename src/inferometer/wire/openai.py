"""OpenAI's completions and chat completions, streamed or not: request bodies, and what responses mean.

A token is content, reasoning or a tool call; an empty role chunk is not one. A chunk counts as one token unless the server
reports more (`continuous_usage_stats`: the growth of usage.completion_tokens). The total is the usage of the last chunk. For
servers that report no usage, `text` keeps the response, so that the model's tokenizer can count its tokens after the run.

Reasoning is what arrives as such (`reasoning_content`, `reasoning`, or a content part of type `thinking`). Text between <think>
tags is content, because the server presents it as content.

A complete response without any token is the failure `empty`, unless the server's usage says that it generated some: a model may
end at once, or spend all tokens on reasoning that the server does not show.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from inferometer.apis import APIS, OUTPUT_LIMITS
from inferometer.types import ONE_REASONING_TOKEN, ONE_TOKEN, Calls, Event, Fail, Request, Tokens, Usage
from inferometer.wire.context import USER_AGENT, CallContext, model_of, prompt_text
from inferometer.wire.failures import bounded
from inferometer.wire.http1 import BodyDecoder, ResponseDecoder, class_heads, error_message, not_json, numbered, tail
from inferometer.wire.sse import EventStream


def encode_chat(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode requests to `/v1/chat/completions`."""
    return _encode(context, requests, [chat_body(context, request) for request in requests])


def encode_completions(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode requests to `/v1/completions`."""
    return _encode(context, requests, [completion_body(context, request) for request in requests])


def chat_tail(context: CallContext, request: Request) -> bytes:
    """Encode one request to `/v1/chat/completions` as a tail of Calls."""
    return tail(request.options.headers, chat_body(context, request))


def completions_tail(context: CallContext, request: Request) -> bytes:
    """Encode one request to `/v1/completions` as a tail of Calls."""
    return tail(request.options.headers, completion_body(context, request))


def _encode(context: CallContext, requests: Sequence[Request], bodies: Sequence[bytes]) -> Calls:
    heads, class_heads, tails = post(context, requests, bodies)
    return Calls(
        heads=heads,
        class_heads=class_heads,
        tails=tails,
        n_in=tuple(request.n_in or -1 for request in requests),
        n_out=tuple(request.n_out for request in requests),
        decoder=partial(_response_decoder, context.stream),
    )


def post(
    context: CallContext, requests: Sequence[Request], bodies: Iterable[bytes]
) -> tuple[tuple[bytes, ...], tuple[tuple[bytes, ...], ...], tuple[bytes, ...]]:
    """The heads, the heads of each class, and the tails of POST requests with these JSON bodies to the API's path."""
    fixed = USER_AGENT | {
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if context.stream else "application/json",
    }
    headers, path = fixed | context.headers, APIS[context.api].path
    own_headers = (request.options.headers for request in requests)
    heads, tails = numbered(context.targets, path, headers, zip(own_headers, bodies, strict=True), context.tag)
    return heads, class_heads(context.targets, path, headers, context.tag, context.class_headers), tails


def chat_body(context: CallContext, request: Request) -> bytes:
    """The JSON to post. The fields of `server.body` override all others, except those that a request has of its own."""
    payload = request.payload
    messages = [{"role": "user", "content": payload}] if isinstance(payload, str) else payload
    model = model_of(context, request)
    return msgspec.json.encode({"model": model, "messages": messages} | _options(context, request))


def completion_body(context: CallContext, request: Request) -> bytes:
    """The JSON to post. The fields of `server.body` override all others, except those that a request has of its own. Messages
    become one text."""
    prompt = request.payload
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        prompt = prompt_text(request)
    model = model_of(context, request)
    return msgspec.json.encode({"model": model, "prompt": prompt} | _options(context, request))


def _options(context: CallContext, request: Request) -> dict[str, object]:
    has_limit = not request.n_out or not request.options.body.keys().isdisjoint(OUTPUT_LIMITS)
    options: dict[str, object] = {} if has_limit else {context.max_tokens_field: request.n_out}
    if context.stream:
        options["stream"] = True
        if context.usage:
            options["stream_options"] = {"include_usage": True}
    if context.ignore_eos:
        options["ignore_eos"] = True
    return options | context.body | request.options.body


def body_decoder(streamed: bool) -> BodyDecoder:
    """Make the decoder of one response body."""
    return StreamedResponse() if streamed else UnstreamedResponse()


def _response_decoder(streamed: bool) -> ResponseDecoder:
    return ResponseDecoder(body_decoder(streamed))


# --- the parts of the JSON that are read ----------------------------------------------------------------------------------


class _Delta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _ResponseJson(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_ResponseJson).decode

_MAX_IN_CHUNK = 65_535


def _usage(usage: _Usage, is_per_chunk: bool = False, is_stopped: bool = False) -> Usage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        -1 if usage.prompt_tokens is None else usage.prompt_tokens,
        -1 if usage.completion_tokens is None else usage.completion_tokens,
        -1 if prompt is None or prompt.cached_tokens is None else prompt.cached_tokens,
        -1 if completion is None or completion.reasoning_tokens is None else completion.reasoning_tokens,
        is_per_chunk,
        is_stopped,
    )


def content_of(response: ResponseDecoder) -> str:
    """The text of a response that a client sends back in the next turn."""
    body = response.body
    assert isinstance(body, StreamedResponse | UnstreamedResponse)
    return body.content


class _Mixed(str):
    """The text of a chunk that is not the same as its content: it has reasoning, or "+" for a tool call."""

    __slots__ = ("content",)
    content: str


def _text(choice: _Choice) -> str:
    """The text of a choice; "+" stands for a tool call, whose text is not assembled here. It is _Mixed unless all of it is content."""
    delta = choice.delta or choice.message
    if delta is None:
        return choice.text or ""
    content = delta.content
    if content.__class__ is str and content and delta.reasoning_content is delta.reasoning is delta.refusal is None:
        return content
    own = whole = content or ""
    if content.__class__ is list:
        own = "".join(_part_text(part, "") for part in content or () if not _is_thinking(part))
        whole = "".join(_part_text(part, "+") for part in content or ())
    refusal = delta.refusal or ""
    text = f"{whole}{delta.reasoning_content or delta.reasoning or ''}{refusal}"
    mixed = _Mixed(text or ("+" if delta.tool_calls or delta.function_call else ""))
    mixed.content = f"{own}{refusal}"
    return mixed


def _part_text(part: object, other: str) -> str:
    """The text of a part of a content; `other` if it is not a text."""
    return str(part.get("text", other)) if isinstance(part, dict) else str(part)


def _is_thinking(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking"


def _content(texts: Iterable[str]) -> str:
    """What a client sends back in the next turn: neither reasoning nor the placeholders of tool calls."""
    return "".join([text.content if isinstance(text, _Mixed) else text for text in texts])


def _is_content(choice: _Choice) -> bool:
    """Whether a choice that carries a token carries more than reasoning."""
    delta = choice.delta or choice.message
    if delta is None:
        return True
    content = delta.content
    if content.__class__ is list:
        content = [part for part in content or () if not _is_thinking(part)]
    return bool(content or delta.tool_calls or delta.function_call or delta.refusal)


def _empty(finish_reason: str | None, usage: _Usage | None) -> Fail | None:
    """The failure of a complete response without a token, unless the server counted some."""
    generated = None if usage is None else usage.completion_tokens
    if generated:
        return None
    reported = "no usage" if generated is None else f"completion_tokens {generated}"
    return Fail("empty", bounded(f"finish_reason {finish_reason or 'missing'}, {reported}"))


# --- the two kinds of response -----------------------------------------------------------------------------------------


class StreamedResponse:
    """The body of a streamed response."""

    __slots__ = (
        *("_counted", "_ended", "_finish_reason", "_has_content", "_head", "_is_per_chunk", "_messages", "_stream"),
        *("_texts", "_usage"),
    )

    def __init__(self) -> None:
        self._stream = EventStream()
        self.reset()

    def reset(self) -> None:
        self._stream.reset()
        self._texts: list[str] = []
        self._has_content = False  # a chunk has arrived that carries more than reasoning
        self._counted = 0  # tokens so far, by the server's continuous usage
        self._is_per_chunk = True  # the server has reported the tokens of every chunk so far
        self._usage: _Usage | None = None
        self._ended = False  # [DONE] or a finish reason has arrived
        self._finish_reason: str | None = None
        self._messages = 0
        self._head = b""  # the start of a body that is not an event stream, for the error message

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def content(self) -> str:
        return _content(self._texts)

    @property
    def finish_reason(self) -> str | None:
        return self._finish_reason

    def feed(self, piece: bytes, events: list[Event]) -> None:
        data = self._stream.single(piece)
        if data is not None:
            self._message(b"", data, events)
            return
        for name, data in self._stream.feed(piece):
            self._message(name, data, events)
        if not self._messages and len(self._head) < 4096:
            self._head += piece

    def finish(self, events: list[Event]) -> Fail | None:
        for name, data in self._stream.finish():
            self._message(name, data, events)
        if events and isinstance(events[-1], Fail):
            return events.pop()  # type: ignore[return-value]
        fail = self._incomplete()
        return fail if fail is not None or self._texts else self._empty()

    def _incomplete(self) -> Fail | None:
        """The failure of a stream that ended before the response was complete, if it did."""
        if self._ended:
            return None
        return Fail("truncated", "") if self._messages else _not_a_stream(self._head)

    def _empty(self) -> Fail | None:
        """The failure of a complete response that carried no token, if it is one."""
        return _empty(self._finish_reason, self._usage)

    def _message(self, name: bytes, data: bytes, events: list[Event]) -> None:
        self._messages += 1
        if name == b"error":
            events.append(Fail("error_frame", error_message(data)))
            return
        try:
            response = _decode(data)
        except msgspec.MsgspecError as error:
            if data == b"[DONE]":
                self._ended = True
                return
            events.append(Fail("malformed_json", bounded(f"{error}: {data[:200].decode('utf-8', 'replace')}")))
            return
        tokens = False
        for choice in response.choices or ():
            text = choice.text or _text(choice)
            if text:
                self._texts.append(text)
                tokens = True
                if not self._has_content:
                    self._has_content = _is_content(choice)
            if choice.finish_reason is not None:
                self._ended = True
                self._finish_reason = choice.finish_reason
        usage = response.usage
        if usage is not None:
            self._with_usage(tokens, usage, events)
        elif tokens:
            self._is_per_chunk = False
            events.append(ONE_TOKEN if self._has_content else ONE_REASONING_TOKEN)
        elif response.error is not None:
            events.append(Fail("error_frame", error_message(data)))

    def _with_usage(self, tokens: bool, usage: _Usage, events: list[Event]) -> None:
        self._usage = usage
        if tokens:
            grown = (usage.completion_tokens or 0) - self._counted
            self._is_per_chunk = self._is_per_chunk and 0 < grown <= _MAX_IN_CHUNK
            if not self._is_per_chunk:  # the growth is not that of this chunk alone
                grown = 1
            self._counted += grown
            events.append(Tokens(grown, self._has_content))
        is_stopped = self._finish_reason is not None and self._finish_reason != "length"
        events.append(_usage(usage, self._is_per_chunk, is_stopped))


class UnstreamedResponse:
    """The body of a response that is not streamed."""

    __slots__ = ("_body", "_response")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._body = b""
        self._response: _ResponseJson | None = None

    @property
    def text(self) -> str:
        return "".join(map(_text, self._choices))

    @property
    def content(self) -> str:
        return _content(map(_text, self._choices))

    @property
    def finish_reason(self) -> str | None:
        return self._choices[0].finish_reason if self._choices else None

    @property
    def _choices(self) -> list[_Choice]:
        return (self._response and self._response.choices) or []

    def feed(self, piece: bytes, events: list[Event]) -> None:
        self._body += piece

    def finish(self, events: list[Event]) -> Fail | None:
        body = self._body
        try:
            response = _decode(body)
        except msgspec.MsgspecError as error:
            return not_json(body, str(error))
        if response.error is not None:
            return Fail("error_body", error_message(body))
        if not response.choices:
            return Fail("malformed_json", bounded(f"no choices: {body[:200].decode('utf-8', 'replace')}"))
        self._response = response
        if response.usage is not None:
            events.append(_usage(response.usage))
        if any(map(_text, response.choices)):
            return None
        return _empty(response.choices[0].finish_reason, response.usage)


def _not_a_stream(head: bytes) -> Fail:
    """The failure of a body that is not the expected event stream."""
    try:
        response = _decode(head)
    except msgspec.MsgspecError as error:
        return not_json(head, str(error)) if head.strip() else Fail("truncated", "the body is empty")
    if response.error is not None:
        return Fail("error_body", error_message(head))
    if response.choices:
        return Fail("not_streamed", "")
    return Fail("error_body", error_message(head))
