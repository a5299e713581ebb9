"""Prompts and conversations from files."""

from collections.abc import Sequence

from inferometer.config.data import ShareGpt
from inferometer.types import Request


def build(spec: ShareGpt, seed: int, ids: Sequence[int]) -> list[Request]:
    raise NotImplementedError


def distinct(spec: ShareGpt) -> int | None:
    raise NotImplementedError


def content(spec: ShareGpt) -> bytes:
    raise NotImplementedError
