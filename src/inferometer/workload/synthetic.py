"""Prompts with an exact number of tokens, made from a corpus: every id has its own."""

from collections.abc import Sequence

from inferometer.config.data import Synthetic
from inferometer.types import Request
from inferometer.workload import chat_template, corpus, lengths, text
from inferometer.workload import tokenizer as tokenizers


def build(spec: Synthetic, seed: int, ids: Sequence[int]) -> list[Request]:
    inputs, outputs = lengths.pairs(
        spec.input, spec.output, seed, ids, correlation=spec.correlation, joint=spec.lengths
    )
    tokenizer = tokenizers.load(spec.tokenizer)
    made = text.texts(
        *(tokenizer, inputs, seed, ids),
        salt=text.salt_of(spec.salt),
        corpus=spec.corpus,
        around=chat_template.load(tokenizer).around if spec.chat_template == "include" else None,
    )
    payloads: Sequence[str | list[int]] = tokenizer.encode_batch(made) if spec.prompt_as == "ids" else made
    rows = zip(ids, payloads, inputs.tolist(), outputs.tolist(), strict=True)
    return [Request(id, prompt, n_in, n_out) for id, prompt, n_in, n_out in rows]


def distinct(spec: Synthetic) -> None:
    """None: every id has its own prompt."""


def content(spec: Synthetic) -> bytes:
    """The corpus."""
    return tokenizers.prose().encode() if spec.corpus is None else corpus.content(spec.corpus)
