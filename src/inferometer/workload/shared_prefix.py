"""Prompts that share prefixes."""

from collections.abc import Sequence

from inferometer.config.data import SharedPrefix
from inferometer.types import Request


def build(spec: SharedPrefix, seed: int, ids: Sequence[int]) -> list[Request]:
    raise NotImplementedError


def distinct(spec: SharedPrefix) -> int | None:
    raise NotImplementedError


def content(spec: SharedPrefix) -> bytes:
    raise NotImplementedError
