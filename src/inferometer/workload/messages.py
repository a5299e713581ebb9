"""Messages for a gRPC method: from the config, or from a file."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from inferometer.config.schema import Messages
from inferometer.errors import UserError
from inferometer.types import Request


def build(spec: Messages, seed: int, ids: Sequence[int]) -> list[Request]:
    """The requests with these ids: the messages in turn. A list is a stream of several."""
    all_of_them = _messages(spec)
    payloads = [one if isinstance(one, list) else [one] for one in all_of_them]
    return [Request(id, payloads[id % len(payloads)], 0, 0) for id in ids]


def distinct(spec: Messages) -> int:
    return len(_messages(spec))


def content(spec: Messages) -> bytes:
    return Path(spec.path).read_bytes() if spec.path else msgspec.json.encode(spec.messages)


def _messages(spec: Messages) -> list[Any]:
    return _from_file(spec.path) if spec.path else spec.messages


def is_encoded(path: str) -> bool:
    """The file is one message as it travels, where others have JSON."""
    return path.endswith(".bin")


@cache
def _from_file(path: str) -> list[Any]:
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"data.path: {path}: {error.strerror}", "give a file with one JSON request a line") from None
    if is_encoded(path):
        return [data]
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"data.path: {path}, line {number}: not JSON: {error}", "mend that line") from None
    if not found:
        raise UserError(f"data.path: {path} has no requests", "give a file with one JSON request a line")
    return found
