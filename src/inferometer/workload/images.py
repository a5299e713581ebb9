"""Images for a model that takes them."""

from collections.abc import Sequence

from inferometer.config.data import Images
from inferometer.types import Request


def build(spec: Images, seed: int, ids: Sequence[int]) -> list[Request]:
    raise NotImplementedError


def distinct(spec: Images) -> int | None:
    raise NotImplementedError


def content(spec: Images) -> bytes:
    raise NotImplementedError
