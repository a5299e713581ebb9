"""Requests from a file with one JSON object per line. Request i uses line i modulo the number of lines.

    {"prompt": "..."}   or   {"messages": [{"role": "user", "content": "..."}]}   optionally with "output": 200
    {"input": "..."}    as in requests for embeddings, the same as "prompt"
    {"turns": ["...", "..."], "think": 0.5}   a session: each turn follows the response to the one before, after `think` seconds

Other keys and blank lines are ignored. A message's content may be a list of parts, whose texts count as input tokens.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from inferometer.config.data import Jsonl
from inferometer.errors import UserError
from inferometer.types import Messages, Request, Turn
from inferometer.units import NS
from inferometer.workload import tokenizer

FORM = '{"prompt": "..."}, {"messages": [{"role": "user", "content": "..."}]} or {"turns": ["...", "..."]}'


class _Line(msgspec.Struct, frozen=True):
    payload: str | Messages
    output: int | None
    turns: tuple[str, ...] = ()
    """A session's, whose first one is the payload."""
    think: int = 0
    """ns"""


def build(spec: Jsonl, seed: int, ids: Sequence[int]) -> list[Request]:
    lines = _lines(spec)
    used = sorted({id % len(lines) for id in ids})
    counted = tokenizer.load(spec.tokenizer).count_batch(text for i in used for text in _texts(lines[i].payload))
    counts, next_count = {}, iter(counted)
    for i in used:
        counts[i] = sum(next(next_count) for _ in _texts(lines[i].payload))
    return [_request(id, lines[id % len(lines)], counts[id % len(lines)], spec.output) for id in ids]


def _request(id: int, line: _Line, n_in: int, output: int) -> Request:
    n_out = output if line.output is None else line.output
    later = tuple(Turn([{"role": "user", "content": text}], 0, n_out, line.think) for text in line.turns[1:])
    return Request(id, line.payload, n_in, n_out, later=later)


def has_sessions(spec: Jsonl) -> bool:
    return any(line.turns for line in _lines(spec))


def distinct(spec: Jsonl) -> int:
    return len(_lines(spec))


def content(spec: Jsonl) -> bytes:
    """The content of the file."""
    return _read(spec.path)


# --- reading ---------------------------------------------------------------------------------------------------------


def _lines(spec: Jsonl) -> tuple[_Line, ...]:
    return _parse(spec.path, _read(spec.path))


def _read(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(
            f"data.path {path} cannot be read: {error.strerror}", f"give a file with one request per line: {FORM}"
        ) from None


@lru_cache(maxsize=2)
def _parse(path: str, data: bytes) -> tuple[_Line, ...]:
    lines = []
    for number, text in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if text.strip():
            try:
                lines.append(_line(text))
            except ValueError as error:
                raise UserError(f"{path}, line {number}: {error}", f"write each line as {FORM}") from None
    if not lines:
        raise UserError(f"{path} contains no requests", f"write each line as {FORM}")
    return tuple(lines)


def _line(text: bytes) -> _Line:
    """Parse one line; ValueError says what is wrong with it."""
    try:
        row = msgspec.json.decode(text.strip())
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {_kind(row)}")
    given = [key for key in ("prompt", "input", "messages", "turns") if key in row]
    if len(given) != 1:
        keys = ", ".join(sorted(row)) or "none"
        raise ValueError(
            f"it has both {' and '.join(given)}"
            if given
            else f"it has no prompt, messages or turns (its keys: {keys[:100]})"
        )
    output = row.get("output")
    if output is not None and (isinstance(output, bool) or not isinstance(output, int) or output < 0):
        raise ValueError(f"output must be a number of tokens, got {output!r}")
    if "turns" in row:
        turns, think = _turns(row["turns"]), _think(row.get("think", 0))
        return _Line([{"role": "user", "content": turns[0]}], output, turns, think)
    return _Line(_messages(row["messages"]) if "messages" in row else _prompt(row[given[0]]), output)


def _turns(turns: object) -> tuple[str, ...]:
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ValueError("turns must be a list of strings")
    return tuple(turns)


def _think(seconds: object) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        raise ValueError(f"think must be a number of seconds, got {seconds!r}")
    return int(seconds * NS)


def _prompt(prompt: object) -> str:
    if not isinstance(prompt, str):
        raise ValueError(f"prompt must be a string, got {_kind(prompt)}")
    if not prompt:
        raise ValueError("prompt is empty")
    return prompt


def _messages(messages: object) -> Messages:
    if not isinstance(messages, list):
        raise ValueError(f"messages must be a list, got {_kind(messages)}")
    if not messages:
        raise ValueError("messages is empty")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"messages.{number} has no role")
        content = message.get("content")
        if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
            raise ValueError(f"messages.{number}.content is a list of something other than objects")
        if not isinstance(content, str | list) and not (content is None and len(message) > 2):  # null beside tool_calls
            raise ValueError(f"messages.{number}.content must be a string or a list, got {_kind(content)}")
    return messages


def _texts(payload: str | Messages) -> list[str]:
    """The texts whose tokens count as input."""
    if isinstance(payload, str):
        return [payload]
    texts: list[object] = []
    for message in payload:
        content = message.get("content")
        texts += [part.get("text") for part in content] if isinstance(content, list) else [content]
    return [text for text in texts if isinstance(text, str)]


def _kind(value: object) -> str:
    names = {str: "a string", dict: "an object", list: "a list", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
