"""Prompts with an exact number of tokens, made from the corpus: every id has its own."""

from collections.abc import Sequence

from inferometer.config.data import Synthetic
from inferometer.types import Request
from inferometer.workload import lengths, text
from inferometer.workload import tokenizer as tokenizers


def build(spec: Synthetic, seed: int, ids: Sequence[int]) -> list[Request]:
    inputs, outputs = lengths.pairs(
        spec.input, spec.output, seed, ids, correlation=spec.correlation, joint=spec.lengths
    )
    made = text.texts(tokenizers.load(spec.tokenizer), inputs, seed, ids, salt=text.salt_of(spec.salt))
    rows = zip(ids, made, inputs.tolist(), outputs.tolist(), strict=True)
    return [Request(id, prompt, n_in, n_out) for id, prompt, n_in, n_out in rows]


def distinct(spec: Synthetic) -> None:
    """None: every id has its own prompt."""


def content(spec: Synthetic) -> bytes:
    """The corpus."""
    return tokenizers.prose().encode()
