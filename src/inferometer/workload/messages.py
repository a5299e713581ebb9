"""Messages for a gRPC method, from the config or from a file. Request i uses message i modulo their number."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from inferometer.config.data import Messages
from inferometer.errors import UserError
from inferometer.types import Request


def build(spec: Messages, seed: int, ids: Sequence[int]) -> list[Request]:
    """Build the requests with these ids. A list of messages is sent as a stream."""
    payloads = [one if isinstance(one, list) else [one] for one in _messages(spec)]
    return [Request(id, payloads[id % len(payloads)], 0, 0) for id in ids]


def distinct(spec: Messages) -> int:
    return len(_messages(spec))


def content(spec: Messages) -> bytes:
    return Path(spec.path).read_bytes() if spec.path else msgspec.json.encode(spec.messages)


def _messages(spec: Messages) -> list[Any]:
    return _from_file(spec.path) if spec.path else spec.messages


def is_encoded(path: str) -> bool:
    """Whether the file is a single encoded message rather than lines of JSON."""
    return path.endswith(".bin")


@cache
def _from_file(path: str) -> list[Any]:
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"data.path: {path}: {error.strerror}", "give a file with one JSON request per line") from None
    if is_encoded(path):
        return [data]
    messages = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            try:
                messages.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"data.path: {path}, line {number}: not JSON: {error}", "correct that line") from None
    if not messages:
        raise UserError(f"data.path: {path} contains no requests", "give a file with one JSON request per line")
    return messages
