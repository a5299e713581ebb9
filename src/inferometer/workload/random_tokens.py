"""Prompts of random tokens."""

from collections.abc import Sequence

from inferometer.config.data import Random
from inferometer.types import Request


def build(spec: Random, seed: int, ids: Sequence[int]) -> list[Request]:
    raise NotImplementedError


def distinct(spec: Random) -> int | None:
    raise NotImplementedError


def content(spec: Random) -> bytes:
    raise NotImplementedError
