"""Prompts given one by one, used in turn: request i asks prompt i modulo their number."""

from collections.abc import Sequence

from inferometer.config.schema import Prompts
from inferometer.errors import UserError
from inferometer.types import Request
from inferometer.workload import tokenizer


def build(spec: Prompts, seed: int, ids: Sequence[int]) -> list[Request]:
    for number, prompt in enumerate(spec.prompts):
        if not prompt:
            raise UserError(f"data.prompts.{number} is empty", "give it some text, or take it out")
    counts = tokenizer.load(spec.tokenizer).count_batch(spec.prompts)
    turns = len(spec.prompts)
    return [Request(id, spec.prompts[id % turns], counts[id % turns], spec.output) for id in ids]


def distinct(spec: Prompts) -> int:
    return len(spec.prompts)


def content(spec: Prompts) -> bytes:
    """Nothing outside the spec."""
    return b""
