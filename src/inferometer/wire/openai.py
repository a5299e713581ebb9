"""OpenAI's completions and chat completions, streamed and not: request bodies, and what answers mean.

A token is content, reasoning or a tool call; an empty role chunk is not one. A chunk counts as one token unless the server
says otherwise (`continuous_usage_stats`: the growth of usage.completion_tokens); how many there were in all is the usage of
the last chunk. Where a server gives none, `text` keeps the answer, to be counted after the run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from inferometer import __version__
from inferometer.config.schema import Server
from inferometer.types import ONE_TOKEN, Calls, Decoder, Event, Fail, Request, Tokens, Usage
from inferometer.wire.failures import bounded
from inferometer.wire.http1 import ResponseDecoder, error_message, not_json, numbered
from inferometer.wire.sse import EventStream
from inferometer.wire.target import Target

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def request_body(server: Server, model: str, request: Request) -> bytes:
    """The JSON to post. `server.body` has the last word."""
    body: dict[str, object] = {"model": model}
    if server.api == "chat":
        is_text = isinstance(request.payload, str)
        body["messages"] = [{"role": "user", "content": request.payload}] if is_text else request.payload
    else:
        body["prompt"] = request.payload
    if request.n_out:
        body[server.max_tokens_field] = request.n_out
    if server.stream:
        body["stream"] = True
        if server.usage:
            body["stream_options"] = {"include_usage": True}
    if server.ignore_eos:
        body["ignore_eos"] = True
    return msgspec.json.encode(body | server.body)


def decoder_for(server: Server) -> Callable[[], Decoder]:
    """What makes a connection's decoder."""
    return (
        (lambda: ResponseDecoder(StreamedResponse())) if server.stream else (lambda: ResponseDecoder(WholeResponse()))
    )


# --- the JSON, as far as it matters ----------------------------------------------------------------------------------


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


def _usage(usage: _Usage) -> Usage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        -1 if usage.prompt_tokens is None else usage.prompt_tokens,
        -1 if usage.completion_tokens is None else usage.completion_tokens,
        -1 if prompt is None or prompt.cached_tokens is None else prompt.cached_tokens,
        -1 if completion is None or completion.reasoning_tokens is None else completion.reasoning_tokens,
    )


def _content(choice: _Choice) -> str:
    """The text that a choice carries; "+" for a tool call, whose text is not worth taking apart here."""
    delta = choice.delta or choice.message
    if delta is None:
        return choice.text or ""
    content = delta.content
    if content.__class__ is str and content and delta.reasoning_content is delta.reasoning is delta.refusal is None:
        return content
    if content.__class__ is list:
        content = "".join(str(part.get("text", "+")) if isinstance(part, dict) else str(part) for part in content or ())
    text = f"{content or ''}{delta.reasoning_content or delta.reasoning or ''}{delta.refusal or ''}"
    return text or ("+" if delta.tool_calls or delta.function_call else "")


# --- the two kinds of answer -----------------------------------------------------------------------------------------


class StreamedResponse:
    """The body of a streamed answer."""

    __slots__ = ("_counted", "_ended", "_head", "_messages", "_stream", "_texts")

    def __init__(self) -> None:
        self._stream = EventStream()
        self.reset()

    def reset(self) -> None:
        self._stream.reset()
        self._texts: list[str] = []
        self._counted = 0  # tokens so far, by the server's continuous usage
        self._ended = False  # [DONE] or a finish reason came
        self._messages = 0
        self._head = b""  # the start of a body that is no event stream, to say what it is

    @property
    def text(self) -> str:
        return "".join(self._texts)

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
        return self._why_not()

    def _why_not(self) -> Fail | None:
        """The stream is over: why it is no whole answer, if it is none."""
        if self._ended:
            return None
        return Fail("truncated", "") if self._messages else _not_a_stream(self._head)

    def _message(self, name: bytes, data: bytes, events: list[Event]) -> None:
        self._messages += 1
        if name == b"error":
            events.append(Fail("error_frame", error_message(data)))
            return
        try:
            answer = _decode(data)
        except msgspec.MsgspecError as error:
            if data == b"[DONE]":
                self._ended = True
                return
            events.append(Fail("malformed_json", bounded(f"{error}: {data[:200].decode('utf-8', 'replace')}")))
            return
        tokens = False
        for choice in answer.choices or ():
            text = choice.text or _content(choice)
            if text:
                self._texts.append(text)
                tokens = True
            if choice.finish_reason is not None:
                self._ended = True
        usage = answer.usage
        if usage is not None:
            self._with_usage(tokens, usage, events)
        elif tokens:
            events.append(ONE_TOKEN)
        elif answer.error is not None:
            events.append(Fail("error_frame", error_message(data)))

    def _with_usage(self, tokens: bool, usage: _Usage, events: list[Event]) -> None:
        if tokens:
            grown = min(max((usage.completion_tokens or 0) - self._counted, 1), _MAX_IN_CHUNK)
            self._counted += grown
            events.append(Tokens(grown))
        events.append(_usage(usage))


class WholeResponse:
    """The body of an answer in one piece."""

    __slots__ = ("_answer", "_body")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._body = b""
        self._answer: _ResponseJson | None = None

    @property
    def text(self) -> str:
        return "".join(_content(choice) for choice in (self._answer and self._answer.choices) or ())

    def feed(self, piece: bytes, events: list[Event]) -> None:
        self._body += piece

    def finish(self, events: list[Event]) -> Fail | None:
        body = self._body
        try:
            answer = _decode(body)
        except msgspec.MsgspecError as error:
            return not_json(body, str(error))
        if answer.error is not None:
            return Fail("error_body", error_message(body))
        if not answer.choices:
            return Fail("malformed_json", bounded(f"no choices: {body[:200].decode('utf-8', 'replace')}"))
        self._answer = answer
        if answer.usage is not None:
            events.append(_usage(answer.usage))
        return None


def _not_a_stream(head: bytes) -> Fail:
    """What came in place of an event stream."""
    try:
        answer = _decode(head)
    except msgspec.MsgspecError as error:
        return not_json(head, str(error)) if head.strip() else Fail("truncated", "the body is empty")
    if answer.error is not None:
        return Fail("error_body", error_message(head))
    if answer.choices:
        return Fail("not_streamed", "set server.stream to false to measure it so")
    return Fail("error_body", error_message(head))


# --- a shard's requests as bytes -------------------------------------------------------------------------------------


def calls(
    server: Server,
    model: str,
    targets: Sequence[Target],
    secrets: dict[str, str],
    requests: Sequence[Request],
    tag: str,
) -> Calls:
    """Encode `requests`; `secrets` are headers that are kept out of every file (the API key)."""
    fixed = {
        "User-Agent": f"inferometer/{__version__}",
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if server.stream else "application/json",
    }
    none: dict[str, str] = {}
    bodies = ((none, request_body(server, model, request)) for request in requests)
    heads, tails = numbered(targets, PATHS[server.api], fixed | server.headers | secrets, bodies, tag)
    return Calls(
        heads=heads,
        tails=tails,
        n_in=tuple(request.n_in or -1 for request in requests),
        n_out=tuple(request.n_out for request in requests),
        decoder=decoder_for(server),
    )
