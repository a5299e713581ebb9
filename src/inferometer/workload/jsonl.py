"""A file with a request a line, used in turn: request i asks line i modulo their number.

    {"prompt": "..."}   or   {"messages": [{"role": "user", "content": "..."}]}   and, if wanted, "output": 200
    {"input": "..."}    as in requests for embeddings, the same as "prompt"

Other keys are left alone, and blank lines are passed over. Content may be a list of parts, of which the texts count.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from inferometer.config.schema import Jsonl
from inferometer.errors import UserError
from inferometer.types import Messages, Request
from inferometer.workload import tokenizer

FORM = '{"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}'


class _Line(msgspec.Struct, frozen=True):
    payload: str | Messages
    output: int | None


def build(spec: Jsonl, seed: int, ids: Sequence[int]) -> list[Request]:
    lines = _lines(spec)
    places = sorted({id % len(lines) for id in ids})
    counted = tokenizer.load(spec.tokenizer).count_batch(text for at in places for text in _texts(lines[at].payload))
    counts, next_count = {}, iter(counted)
    for at in places:
        counts[at] = sum(next(next_count) for _ in _texts(lines[at].payload))
    return [_request(id, lines[id % len(lines)], counts[id % len(lines)], spec.output) for id in ids]


def _request(id: int, line: _Line, n_in: int, output: int) -> Request:
    return Request(id, line.payload, n_in, output if line.output is None else line.output)


def distinct(spec: Jsonl) -> int:
    return len(_lines(spec))


def content(spec: Jsonl) -> bytes:
    """What the file holds."""
    return _read(spec.path)


# --- reading ---------------------------------------------------------------------------------------------------------


def _lines(spec: Jsonl) -> tuple[_Line, ...]:
    return _parse(spec.path, _read(spec.path))


def _read(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"data.path {path} cannot be read: {error.strerror}", f"give a file of lines {FORM}") from None


@lru_cache(maxsize=2)
def _parse(path: str, data: bytes) -> tuple[_Line, ...]:
    lines = []
    for number, text in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if text.strip():
            try:
                lines.append(_line(text))
            except ValueError as error:
                raise UserError(f"{path}, line {number}: {error}", f"a line is {FORM}") from None
    if not lines:
        raise UserError(f"{path} holds no requests", f"a line is {FORM}")
    return tuple(lines)


def _line(text: bytes) -> _Line:
    """One line, or a ValueError that says what is wrong with it."""
    try:
        row = msgspec.json.decode(text.strip())
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    if not isinstance(row, dict):
        raise ValueError(f"not an object but {_kind(row)}")
    found = [key for key in ("prompt", "input", "messages") if key in row]
    if len(found) != 1:
        keys = ", ".join(sorted(row)) or "none"
        raise ValueError(
            f"both {found[0]} and {found[1]}" if found else f"neither prompt nor messages (its keys: {keys[:100]})"
        )
    output = row.get("output")
    if output is not None and (isinstance(output, bool) or not isinstance(output, int) or output < 0):
        raise ValueError(f"output is {output!r}, not a number of tokens")
    return _Line(_messages(row["messages"]) if "messages" in row else _prompt(row[found[0]]), output)


def _prompt(prompt: object) -> str:
    if not isinstance(prompt, str):
        raise ValueError(f"prompt is {_kind(prompt)}, not text")
    if not prompt:
        raise ValueError("prompt is empty")
    return prompt


def _messages(messages: object) -> Messages:
    if not isinstance(messages, list):
        raise ValueError(f"messages is {_kind(messages)}, not a list")
    if not messages:
        raise ValueError("messages is empty")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"messages.{number} has no role")
        content = message.get("content")
        if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
            raise ValueError(f"messages.{number}.content is a list of something else than parts")
        if not isinstance(content, str | list) and not (content is None and len(message) > 2):  # null beside tool_calls
            raise ValueError(f"messages.{number}.content is {_kind(content)}, not text")
    return messages


def _texts(payload: str | Messages) -> list[str]:
    """The texts that count as input."""
    if isinstance(payload, str):
        return [payload]
    found: list[object] = []
    for message in payload:
        content = message.get("content")
        found += [part.get("text") for part in content] if isinstance(content, list) else [content]
    return [text for text in found if isinstance(text, str)]


def _kind(value: object) -> str:
    names = {str: "a text", dict: "an object", list: "a list", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
