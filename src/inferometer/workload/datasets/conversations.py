"""Conversations as rows have them, in one form: exchanges, each of which is what was added to the prompt and the recorded response.

{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}    ShareGPT
{"messages": [{"role": "user", "content": "..."}, ...]}                                     OpenAI
{"turns": ["...", "..."], "think": 0.5}                                                     the user's turns alone
{"turns": [{"content": "...", "output": 64, "think": 0.5, "response": "..."}]}              turns that differ
{"turns": [{"text": "...", "delay": 100}]}                                                  AIPerf, with milliseconds
{"conversation_id": "a", "turn": 1, "role": "user", "content": "..."}                       one row per message
"""

from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from inferometer.types import NO_OPTIONS, Messages, RequestOptions
from inferometer.units import NS
from inferometer.workload.datasets.rows import Row, kind_of

Form = Literal["prompt", "messages", "sharegpt", "turns"]


class Exchange(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    added: Messages
    """The messages that the turn adds to the prompt."""
    response: Messages = []
    """The recorded response; empty if there is none."""
    think: int | None = None
    """Nanoseconds between the end of the turn before and this one; None: the row does not say it."""
    output: int | None = None
    """Tokens to request in this turn; None: as many as the record says."""
    is_whole: bool = False
    """The messages are the whole prompt of the turn, which does not continue that of the turn before."""


class Record(msgspec.Struct, frozen=True):
    """What a row says, in a form that does not depend on its columns."""

    exchanges: tuple[Exchange, ...]
    form: Form = "prompt"
    output: int | None = None
    """Tokens to request; None: the row does not say it."""
    options: RequestOptions = NO_OPTIONS
    url: str = ""
    """The path that the request is for; empty: any."""
    is_recorded: bool = False
    """Later prompts contain the recorded responses, whatever the config says."""


_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
    "assistant": "assistant", "model": "assistant", "system": "system",
    "function_call": "function_call", "observation": "tool", "tool": "tool", "function_response": "tool",
}  # fmt: skip
"""What ShareGPT's `from` means."""


MEDIA = ("image", "images", "audio", "audios", "video", "videos")
"""Keys of what cannot be sent."""


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def decoded(value: Any) -> Any:
    """A cell that may be JSON in a string, as CSV files have it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return value


# --- messages --------------------------------------------------------------------------------------------------------


def conversation(name: str, value: Any) -> tuple[tuple[Exchange, ...], Form]:
    """The exchanges of a column of messages, ShareGPT's or OpenAI's."""
    messages = decoded(value)
    if not isinstance(messages, list):
        raise ValueError(f"{name} must be a list, got {kind_of(messages)}")
    if not messages:
        raise ValueError(f"{name} is empty")
    if isinstance(messages[0], dict) and "from" in messages[0]:
        return exchanges(_from_sharegpt(name, messages)), "sharegpt"
    _check_messages(name, messages)
    return exchanges(messages), "messages"


def _check_messages(name: str, messages: list[Any]) -> None:
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"{name}.{number} has no role")
        content = message.get("content")
        if isinstance(content, list):
            _check_parts(f"{name}.{number}.content", content)
        # An assistant's message may have tool_calls alone, and content null or left out.
        elif not isinstance(content, str) and (content is not None or "tool_calls" not in message):
            raise ValueError(f"{name}.{number}.content must be a string or a list, got {kind_of(content)}")


def _check_parts(name: str, parts: list[Any]) -> None:
    for number, part in enumerate(parts):
        if not isinstance(part, dict):
            raise ValueError(f"{name} is a list of something other than objects")
        kind = part.get("type")
        if isinstance(kind, str) and kind in ("text", "image_url", "input_audio") and kind not in part:
            raise ValueError(
                f"{name}.{number} is of type {kind}, but has no {kind} (its keys: {', '.join(sorted(part))})"
            )


def _from_sharegpt(name: str, entries: list[Any]) -> Messages:
    messages: Messages = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("from"), str):
            raise ValueError(f"{name}.{number} has no from")
        role, text = _ROLES.get(entry["from"].lower()), entry.get("value")
        if role is None:
            raise ValueError(f"{name}.{number}.from is {entry['from']!r}, not one of {', '.join(_ROLES)}")
        if not isinstance(text, str):
            raise ValueError(f"{name}.{number}.value must be a string, got {kind_of(text)}")
        if role == "function_call":
            messages.append(_function_call(text, f"call_{number}"))
        elif role == "tool":
            messages.append(_tool_result(text, messages))
        else:
            messages.append({"role": role, "content": text})
    return messages


def _function_call(text: str, id: str) -> dict[str, object]:
    """A message with tool calls, if the text is JSON as `{"name": ..., "arguments": ...}`, or a list of such objects."""
    value = decoded(text)
    calls = value if isinstance(value, list) else [value]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return {"role": "assistant", "content": text}
    ids = [id, *(f"{id}_{number}" for number in range(1, len(calls)))]
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": own, "type": "function", "function": {"name": call["name"], "arguments": _as_text(call.get("arguments", {}))}}
            for own, call in zip(ids, calls, strict=True)
        ],
    }  # fmt: skip


def _tool_result(text: str, before: Messages) -> dict[str, object]:
    calls = cast("list[dict[str, object]]", before[-1].get("tool_calls") or [] if before else [])
    return {"role": "tool", "tool_call_id": calls[0]["id"] if calls else "call", "content": text}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def exchanges(messages: Messages) -> tuple[Exchange, ...]:
    """Divide a conversation at its responses. What the assistant says before the user's first message is part of the prompt."""
    divided: list[Exchange] = []
    added: Messages = []
    response: Messages = []
    may_respond = False
    for message in messages:
        if message["role"] == "assistant" and may_respond:
            response.append(message)
            continue
        if response:
            divided.append(Exchange(added, response))
            added, response, may_respond = [], [], False
        added.append(message)
        may_respond = may_respond or message["role"] not in ("system", "developer", "assistant")
    if not divided and not may_respond and messages[-1]["role"] == "assistant":
        raise ValueError("it has no message of the user")
    if divided and not response and not may_respond:  # it ends with a system message
        return tuple(divided)
    return (*divided, Exchange(added, response))


# --- other forms -----------------------------------------------------------------------------------------------------


def users_turns(row: Row) -> tuple[Exchange, ...]:
    """The exchanges of a row with the user's turns, and perhaps with reference responses to them."""
    turns, references = decoded(row["turns"]), row.get("reference")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str | dict) and turn for turn in turns):
        raise ValueError("turns must be a list of strings or objects")
    think = nanoseconds("think", row["think"]) if row.get("think") is not None else None
    made = [_turn(f"turns.{number}", turn, think) for number, turn in enumerate(turns)]
    if isinstance(references, list) and len(references) == len(turns):
        made = [
            msgspec.structs.replace(each, response=[_assistant(str(text))])
            for each, text in zip(made, references, strict=True)
        ]
    return tuple(made)


def _turn(name: str, turn: Any, think: int | None) -> Exchange:
    """One entry of `turns`: the user's text, or an object."""
    if isinstance(turn, str):
        return Exchange([user(turn)], think=think)
    key = next((key for key in _TURN_TEXTS if turn.get(key) is not None), None)
    if key is None:
        raise ValueError(
            f"{name} has no {', '.join(_TURN_TEXTS)} (its keys: {', '.join(sorted(turn))[:100] or 'none'})"
        )
    if media := next((name for name in MEDIA if turn.get(name)), None):
        raise ValueError(f"{name} has {media!r}, which cannot be sent")
    if turn.get("think") is not None:
        think = nanoseconds(f"{name}.think", turn["think"])
    elif turn.get("delay") is not None:
        think = nanoseconds(f"{name}.delay", turn["delay"], _MS)
    output = next((key for key in _TURN_OUTPUTS if turn.get(key) is not None), None)
    return Exchange(
        _turn_messages(f"{name}.{key}", turn[key], str(turn.get("role") or "user")),
        _turn_messages(f"{name}.response", turn["response"], "assistant") if turn.get("response") is not None else [],
        think,
        number_of_tokens(f"{name}.{output}", turn[output]) if output else None,
        key == "prompt",
    )


_TURN_TEXTS = ("content", "text", "messages", "prompt")
"""What a turn adds: its text, or several messages; `prompt`: the whole prompt."""
_TURN_OUTPUTS = ("output", "output_length", "max_tokens")
_MS = NS // 1000


def _turn_messages(name: str, value: Any, role: str) -> Messages:
    if isinstance(value, str) and value:
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise ValueError(
            f"{name} must be a text or a list of messages, got {'nothing' if not value else kind_of(value)}"
        )
    _check_messages(name, value)
    return value


def _assistant(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": text}


def conversation_of_rows(rows: Sequence[Row]) -> Record:
    """A conversation with one row per message. A tool's row has its results, and the time that it took."""
    messages: Messages = []
    thinks: dict[int, int] = {}
    tools: Any = None
    for row in rows:
        if isinstance(row.get("system"), str):
            messages.append({"role": "system", "content": row["system"]})
        tools = tools or row.get("tools")
        if row.get("delay_seconds") is not None:
            thinks[len(messages)] = nanoseconds("delay_seconds", row["delay_seconds"])
        if isinstance(row.get("tool_results"), list):
            messages += [{"role": "tool"} | result for result in row["tool_results"]]
        else:
            kept = ("role", "content", "reasoning_content", "tool_calls")
            messages.append({name: row[name] for name in kept if row.get(name) is not None})
    _check_messages("messages", messages)
    divided, at = [], 0
    for exchange in exchanges(messages):
        divided.append(Exchange(exchange.added, exchange.response, thinks.get(at)))
        at += len(exchange.added) + len(exchange.response)
    return Record(tuple(divided), "turns", None, tool_options({"tools": tools}))


def nanoseconds(name: str, time: object, unit: int = NS) -> int:
    """A time of a row, in seconds or in another unit with this number of nanoseconds."""
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time * unit < 1e9 * NS:
        raise ValueError(f"{name} must be a number of {'seconds' if unit == NS else 'milliseconds'}, got {time!r}")
    return round(time * unit)


def number_of_tokens(name: str, value: Any) -> int:
    number = decoded(value)
    if isinstance(number, str) and number.strip().isdecimal():
        number = int(number)
    if isinstance(number, float) and number.is_integer():  # a column with nulls, as pandas writes it
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{name} must be a number of tokens, got {value!r}")
    return number


def tool_options(row: Row) -> RequestOptions:
    """The tools of a row, which may be JSON in a string, and may lack the wrapping that OpenAI's API wants."""
    tools = decoded(row.get("tools"))
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, dict) for tool in tools):
        return NO_OPTIONS
    wrapped = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
    more = {name: row[name] for name in ("tool_choice", "parallel_tool_calls") if row.get(name) is not None}
    return RequestOptions(body={"tools": wrapped} | more)


# --- texts -----------------------------------------------------------------------------------------------------------


def texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    """The texts whose tokens count as input."""
    parts: list[object] = []
    for message in messages:
        content = message.get("content")
        parts += [part.get("text") for part in content] if isinstance(content, list) else [content]
    return [text for text in parts if isinstance(text, str)]


def response_text(messages: Sequence[dict[str, Any]]) -> str | None:
    """Everything that a recorded response generated, tool calls and reasoning included; None if there is no response."""
    if not messages:
        return None
    parts = texts(messages)
    for message in messages:
        if isinstance(message.get("reasoning_content"), str):
            parts.insert(0, message["reasoning_content"])
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                parts.append(f"{function.get('name')} {_as_text(function.get('arguments', ''))}")
    return "\n".join(parts)
