"""Prompts of the lengths that a trace has."""

from collections.abc import Sequence

from inferometer.config.data import Trace
from inferometer.types import Request


def build(spec: Trace, seed: int, ids: Sequence[int]) -> list[Request]:
    raise NotImplementedError


def distinct(spec: Trace) -> int | None:
    raise NotImplementedError


def content(spec: Trace) -> bytes:
    raise NotImplementedError
