"""Prompts from the command line or the config. Request i uses prompt i modulo their number."""

from collections.abc import Sequence

from inferometer.config.data import Prompts
from inferometer.errors import UserError
from inferometer.types import Request
from inferometer.workload import tokenizer


def build(spec: Prompts, seed: int, ids: Sequence[int]) -> list[Request]:
    for number, prompt in enumerate(spec.prompts):
        if not prompt:
            raise UserError(f"data.prompts.{number} is empty", "give it some text, or remove it")
    counts = tokenizer.load(spec.tokenizer).count_batch(spec.prompts)
    n = len(spec.prompts)
    return [Request(id, spec.prompts[id % n], counts[id % n], spec.output) for id in ids]


def distinct(spec: Prompts) -> int:
    return len(spec.prompts)


def content(spec: Prompts) -> bytes:
    """Nothing: the prompts are in the spec."""
    return b""
