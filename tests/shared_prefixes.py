"""What prompts have in common: the tokens that a server's prefix cache can provide."""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.types import Request
from inferometer.workload.tokenizer import Tokenizer

Tokens = Sequence[Hashable]
"""Token ids, or anything else that stands for tokens."""


def promised_hits(
    prompts: Iterable[Tokens],
    block: int,
    *,
    sent: Sequence[int] | NDArray[np.int64] | None = None,
    ready: Sequence[int] | NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """How many tokens of each prompt a server finds in a prefix cache that was empty at first and is large enough.

    A cache holds whole blocks of `block` tokens, and a server computes at least the last token of a prompt. Prompts are in the
    order in which they are sent. Without instants, each finds what all prompts before it left. With them, it finds the blocks of
    prompts that had been processed (`ready`: the first token of their response) when it was `sent`: prompts that start with the
    same new prefix at the same time all miss it.
    """
    blocks: dict[tuple[int, Tokens], int] = {}
    rows: list[tuple[int, list[int]]] = []
    first_ready: list[float] = []
    for index, prompt in enumerate(prompts):
        at, keys, key = index + 0.5 if ready is None else ready[index], list[int](), -1
        for start in range(0, len(prompt) - block + 1, block):
            key = blocks.setdefault((key, tuple(prompt[start : start + block])), len(blocks))
            keys.append(key)
            if key == len(first_ready):
                first_ready.append(at)
            elif at < first_ready[key]:
                first_ready[key] = at
        rows.append(((len(prompt) - 1) // block, keys))
    hits = np.zeros(len(rows), dtype=np.int64)
    for index, (most, keys) in enumerate(rows):
        at = index if sent is None else sent[index]
        missed = (n for n, key in enumerate(keys[:most]) if first_ready[key] > at)
        hits[index] = block * next(missed, min(most, len(keys)))
    return hits


def token_ids(tokenizer: Tokenizer, request: Request) -> list[int]:
    """The tokens of a prompt without a chat template: those of its text, or of its messages one after the other."""
    payload = request.payload
    if isinstance(payload, str):
        return tokenizer.encode(payload)
    if all(isinstance(entry, int) for entry in payload):
        return list(payload)
    return [token for text in _texts(payload) for token in tokenizer.encode(text)]


def _texts(payload: Iterable[object]) -> list[str]:
    """The texts of chat messages."""
    contents = [message.get("content") for message in payload if isinstance(message, dict)]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]
