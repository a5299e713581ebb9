"""OpenAI's completions and chat completions, streamed or not: request bodies, and what responses mean.

A token is content, reasoning or a tool call; an empty role chunk is not one. A chunk counts as one token unless the server
reports more (`continuous_usage_stats`: the growth of usage.completion_tokens). The total is the usage of the last chunk. For
servers that report no usage, `text` keeps the response, so that the model's tokenizer can count its tokens after the run.

Reasoning is what arrives as such (`reasoning_content`, `reasoning`, or a content part of type `thinking`). Text between <think>
tags is content, because the server presents it as content.
"""

from typing import Any

import msgspec

from inferometer.apis import OUTPUT_LIMITS
from inferometer.types import Fail, Received, Request, Usage
from inferometer.wire import text_body
from inferometer.wire.context import CallContext, model_of, prompt_text
from inferometer.wire.failures import bounded, excerpt
from inferometer.wire.http1 import error_message


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


# --- what a response means ---------------------------------------------------------------------------------------------


def _event(data: bytes, at: int, into: Received) -> Fail | None:
    """Take the data of an event."""
    response = _decode(data)
    has_token = False
    for choice in response.choices or ():
        text = content = choice.text
        if not text:
            text, content = _texts(choice)
        if text:
            has_token = True
            if content == text and into.contents is None:
                into.texts.append(text)
            else:
                into.add_text(text, content or "")
            if not into.first_content and (content or _is_call(choice)):
                into.first_content = at
        if choice.finish_reason is not None:
            into.is_ended = True
            into.finish_reason = choice.finish_reason
    usage = response.usage
    if usage is not None:
        _take_usage(usage, has_token, at, into)
    elif has_token:
        into.arrivals.append(at)
        into.counts.append(1)
        into.counted = -1
    elif response.error is not None:
        return Fail("error_frame", error_message(data))
    return None


def _take_usage(usage: _Usage, has_token: bool, at: int, into: Received) -> None:
    if has_token:
        grown = (usage.completion_tokens or 0) - into.counted
        if into.counted < 0 or not 0 < grown <= _MAX_IN_CHUNK:  # the growth is not that of this chunk alone
            into.counted, grown = -1, 1
        else:
            into.counted += grown
        into.arrivals.append(at)
        into.counts.append(grown)
    is_stopped = into.finish_reason is not None and into.finish_reason != "length"
    into.usage = _usage(usage, into.counted >= 0, is_stopped)


def _whole(body: bytes, into: Received) -> Fail | None:
    """Take a response that is not streamed."""
    response = _decode(body)
    if response.error is not None:
        return Fail("error_body", error_message(body))
    if not response.choices:
        return Fail("malformed_json", bounded(f"no choices: {excerpt(body)}"))
    for choice in response.choices:
        text, content = (choice.text, choice.text) if choice.text else _texts(choice)
        if text:
            into.add_text(text, content or "")
    into.finish_reason = response.choices[0].finish_reason
    if response.usage is not None:
        into.usage = _usage(response.usage)
    return None


EXTRACTOR = text_body.Extractor(_event, _whole)


def _texts(choice: _Choice) -> tuple[str, str]:
    """The text of a chat's choice, and its content: the text without reasoning, and without the "+" that stands for a tool call."""
    delta = choice.delta or choice.message
    if delta is None:
        return "", ""
    content = delta.content
    if content.__class__ is str and content and delta.reasoning_content is delta.reasoning is delta.refusal is None:
        return content, content
    own = whole = content or ""
    if isinstance(content, list):
        own = "".join(_part_text(part, "") for part in content if not _is_thinking(part))
        whole = "".join(_part_text(part, "+") for part in content)
    refusal = delta.refusal or ""
    text = f"{whole}{delta.reasoning_content or delta.reasoning or ''}{refusal}"
    return text or ("+" if delta.tool_calls or delta.function_call else ""), f"{own}{refusal}"


def _part_text(part: object, other: str) -> str:
    """The text of a part of a content; `other` if it is not a text."""
    return str(part.get("text", other)) if isinstance(part, dict) else str(part)


def _is_thinking(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking"


def _is_call(choice: _Choice) -> bool:
    """Whether a choice without content carries more than reasoning: a tool call, or a part that is not text."""
    delta = choice.delta or choice.message
    if delta is None:
        return False
    others = [part for part in delta.content if not _is_thinking(part)] if isinstance(delta.content, list) else None
    return bool(others or delta.tool_calls or delta.function_call)
