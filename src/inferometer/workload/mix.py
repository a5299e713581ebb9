"""Traffic classes: requests of several kinds."""

from collections.abc import Sequence

from inferometer.config.data import Mix
from inferometer.types import Request


def build(spec: Mix, seed: int, ids: Sequence[int]) -> list[Request]:
    raise NotImplementedError


def distinct(spec: Mix) -> int | None:
    raise NotImplementedError


def content(spec: Mix) -> bytes:
    raise NotImplementedError
