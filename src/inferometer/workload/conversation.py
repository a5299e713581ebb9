"""Conversations that are generated."""

from collections.abc import Sequence

from inferometer.config.data import Conversation
from inferometer.types import Request


def build(spec: Conversation, seed: int, ids: Sequence[int]) -> list[Request]:
    raise NotImplementedError


def distinct(spec: Conversation) -> int | None:
    raise NotImplementedError


def content(spec: Conversation) -> bytes:
    raise NotImplementedError
