"""The workload as JSON lines, which `data: {type: jsonl}` reads back: the same prompts, messages, turns and output lengths.

    {"prompt": "...", "output": 64}                                     one prompt
    {"messages": [...], "output": 64}                                   chat messages
    {"system": "...", "turns": [{"content": "...", "output": 64}, {"content": "...", "output": 32, "think": 0.5}]}
                                                                        a session, whose later prompts contain the live responses
    {"history": "recorded", "turns": [{"content": "...", "response": "..."}, ...]}
                                                                        the same with recorded responses

A turn has `messages` instead of `content` if it adds other messages than one of the user, and `prompt` if its prompt does not
continue that of the turn before. `body`, with the model, and `headers` are what a request has of its own.
"""

from itertools import pairwise
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.tensors import Tensor
from inferometer.types import Messages, Request, Turn
from inferometer.units import NS

_ENDS = ("assistant", "system", "developer")
"""Roles of a last message with which jsonl does not read `messages` as the prompt."""


def line(request: Request, class_: str | None = None) -> bytes:
    """Return the line of one request. Raises UserError when the format cannot express it."""
    row: dict[str, Any] = _turns(request) if request.later else _prompt(request)
    options = request.options
    body = options.body | ({"model": options.model} if options.model else {})
    row |= ({"body": body} if body else {}) | ({"headers": options.headers} if options.headers else {})
    if class_ is not None:
        row["class"] = class_
    return msgspec.json.encode(row) + b"\n"


def _prompt(request: Request) -> dict[str, Any]:
    payload = _text_or_messages(request.payload)
    if isinstance(payload, str):
        return {"prompt": payload, "output": request.n_out}
    if payload[-1]["role"] in _ENDS:
        return {"turns": [{"messages": payload, "output": request.n_out}]}
    return {"messages": payload, "output": request.n_out}


def _text_or_messages(payload: object) -> str | Messages:
    if isinstance(payload, str):
        return payload
    if isinstance(payload, list) and payload and all(isinstance(each, dict) and "role" in each for each in payload):
        return payload
    if isinstance(payload, list) and payload and all(isinstance(each, int) for each in payload):
        raise _inexpressible("prompts of token ids", "let the data consist of text: leave out `ids`")
    raise _inexpressible("tensors" if isinstance(payload, tuple | Tensor) else "messages of a gRPC method")


# --- sessions --------------------------------------------------------------------------------------------------------


def _turns(request: Request) -> dict[str, Any]:
    prompt = _text_or_messages(request.payload)
    messages: Messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    row: dict[str, Any] = {}
    first = messages
    if len(messages) > 1 and messages[0].keys() == {"role", "content"} and messages[0]["role"] == "system":
        content = messages[0]["content"]
        if isinstance(content, str) and content:
            row["system"], first = content, messages[1:]
    turns = [_added(first) | {"output": request.n_out}]
    for turn in request.later:
        own = _later(turn, messages, turns[-1])
        if isinstance(turn.payload, list):
            messages = turn.payload  # type: ignore[assignment]
        else:
            response: Messages = [] if turn.response is None else [{"role": "assistant", "content": turn.response}]
            messages = [*messages, *response, *turn.messages]
        turns.append(own | {"output": turn.n_out} | ({"think": turn.think / NS} if turn.think else {}))
    if any("response" in turn for turn in turns):
        if any("response" not in turn and "prompt" not in after for turn, after in pairwise(turns)):
            raise _inexpressible("sessions with some recorded responses and some live ones")
        row["history"] = "recorded"
    return row | {"turns": turns}


def _later(turn: Turn, before: Messages, previous: dict[str, Any]) -> dict[str, Any]:
    """What a later turn adds. A recorded response becomes part of the turn before."""
    if turn.payload is None:
        if turn.response is not None:
            previous["response"] = turn.response
        return _added(turn.messages)
    payload = _text_or_messages(turn.payload)
    end = len(payload) - len(turn.messages)
    if not turn.messages or payload[: len(before)] != before or payload[end:] != turn.messages or end <= len(before):
        return {"prompt": payload}
    previous["response"] = payload[len(before) : end]
    return _added(turn.messages)


def _added(messages: Messages) -> dict[str, Any]:
    """The text of the user if there is nothing else, otherwise all messages."""
    if len(messages) == 1 and messages[0].keys() == {"role", "content"} and messages[0]["role"] == "user":
        content = messages[0]["content"]
        if isinstance(content, str) and content:
            return {"content": content}
    return {"messages": messages}


def _inexpressible(what: str, remedy: str = "leave it out; the config itself is reproducible") -> UserError:
    return UserError(f"--jsonl: a line of JSON cannot express {what}", remedy)
