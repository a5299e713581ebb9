"""Prompts of random words or random token ids: nothing that one prompt computes helps with another."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.config.data import Random
from inferometer.errors import UserError
from inferometer.types import Request
from inferometer.workload import chat_template, lengths, text
from inferometer.workload import tokenizer as tokenizers


def build(spec: Random, seed: int, ids: Sequence[int]) -> list[Request]:
    inputs, outputs = lengths.pairs(
        spec.input, spec.output, seed, ids, correlation=spec.correlation, joint=spec.lengths
    )
    tokenizer, salt = tokenizers.load(spec.tokenizer), text.salt_of(spec.salt)
    payloads: list[str] | list[list[int]]
    if spec.of == "ids":
        payloads = _random_ids(tokenizer, inputs, seed, ids, salt)
    else:
        around = chat_template.load(tokenizer).around if spec.chat_template == "include" else None
        payloads = text.random_words(tokenizer, inputs, seed, ids, salt=salt, around=around)
    n_in, n_out = inputs.tolist(), outputs.tolist()
    return [Request(id, payloads[i], n_in[i], n_out[i]) for i, id in enumerate(ids)]


def distinct(spec: Random) -> None:
    """None: every id has its own prompt."""


def content(spec: Random) -> bytes:
    """Nothing but the tokenizer, which is in the digest anyway."""
    return b""


def _random_ids(
    tokenizer: tokenizers.Tokenizer, inputs: NDArray[np.int64], seed: int, ids: Sequence[int], salt: str
) -> list[list[int]]:
    ordinary = np.array(tokenizer.ordinary_ids(), np.int64)
    if not len(ordinary):
        raise UserError(
            f"tokenizer {tokenizer.name} has no tokens but special ones", "use another tokenizer", key="data.tokenizer"
        )
    rows = text.random_rows(seed, np.array(ids, dtype=np.uint64), inputs, f"ids {salt}".strip())
    return [ordinary[numbers % np.uint64(len(ordinary))].tolist() for _, numbers in rows]
