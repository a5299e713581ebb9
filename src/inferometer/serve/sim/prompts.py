"""Counts the tokens of prompts, and provides the words of responses and the vectors of embeddings.

Both use the built-in tokenizer: each word, with the space before it, is exactly one token, so that a client that
tokenizes the response gets the exact count.

A tokenizer takes about a millisecond for 500 tokens, during which no stream would get its token. But it cuts every text
before each space that is followed by something other than a space, and handles the pieces independently: so pieces are
tokenized once and cached, and a prompt is looked up piece by piece, ten times as fast with the same result. Texts that
are not that regular are tokenized as a whole.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.openai.requests import Part
from inferometer.workload.tokenizer import load, words

DIMENSIONS = 384  # of an embedding if the request sets none
_KEPT_PIECES, _LONG_PIECE = 200_000, 64
_KEPT_TEXTS, _LONG_TEXT = 2048, 65_536
"""How many pieces, and counts of texts, are cached, and the length from which they are not."""


class Prompts(BoundedCache[str, list[int]]):
    """Counts prompt tokens and, for a prefix cache, returns their ids. Its items are the ids of pieces, which are the
    keys without the space before them; they are computed on first use."""

    def __init__(self) -> None:
        super().__init__(_KEPT_PIECES)
        self._encode = load(None).encode
        self._kept_count = lru_cache(_KEPT_TEXTS)(self._count)
        for word in words():
            self[word]

    def __missing__(self, piece: str) -> list[int]:
        if not piece or piece[0].isspace():
            raise KeyError  # the tokenizer does not cut the text here
        ids = self._encode(" " + piece)
        return self.keep(piece, ids) if len(piece) <= _LONG_PIECE else ids

    def count(self, parts: Sequence[Part]) -> int:
        return sum([
            self._kept_count(part) if isinstance(part, str) and len(part) <= _LONG_TEXT else self._count(part)
            for part in parts
        ])  # fmt: skip

    def _count(self, part: Part) -> int:
        return sum(map(len, self._pieces(part)))

    def ids(self, parts: Sequence[Part]) -> list[int]:
        return [token for part in parts for piece in self._pieces(part) for token in piece]

    def _pieces(self, part: Part) -> list[list[int]]:
        """Return the token ids of a text, in pieces."""
        if not isinstance(part, str):
            return [part]
        first, *further = part.split(" ")
        try:
            return [self._encode(first), *map(self.__getitem__, further)]
        except KeyError:
            return [self._encode(part)]


def response_words() -> list[bytes]:
    """Return the words of responses, none of which needs escaping in JSON. They repeat after the last one, and each
    request starts at its own position."""
    return [(" " + word).encode() for word in words()]


def text(words: Sequence[bytes], at: int, count: int) -> bytes:
    """Return `count` words from position `at` on."""
    return b"".join([words[index % len(words)] for index in range(at, at + count)])


def vector(part: Part, dimensions: int | None) -> np.ndarray:
    """Return the embedding of a text or of token ids: a vector of length 1 that depends on nothing else."""
    text = part if isinstance(part, str) else " ".join(map(str, part))
    noise = hashlib.shake_256(text.encode()).digest(dimensions or DIMENSIONS)
    made = np.frombuffer(noise, np.uint8).astype(np.float32) - np.float32(127.5)
    return made / np.linalg.norm(made)
