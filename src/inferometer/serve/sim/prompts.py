"""Counts the tokens of prompts, and provides the words of responses and the vectors of embeddings.

Both use the built-in tokenizer: each word, with the space before it, is exactly one token, so that a client that
tokenizes the response gets the exact count.

A tokenizer takes about a millisecond for 500 tokens, during which no stream would get its token. But it cuts every text
before each space that is followed by something other than a space, and handles the pieces independently: so pieces are
tokenized once and cached, and a prompt is looked up piece by piece, ten times as fast with the same result. Texts that
are not that regular are tokenized as a whole.
"""

import hashlib
from functools import lru_cache
from itertools import chain

import numpy as np

from inferometer.serve.openai.requests import Parts
from inferometer.workload.tokenizer import Tokenizer, load, words

DIMENSIONS = 384
"""Length of an embedding if the request sets none."""
_KEPT_TEXTS, _LONG_TEXT = 2048, 65_536
"""How many counts of texts are cached, and the length from which they are not."""
_KEPT_PIECES, _LONG_PIECE = 200_000, 64


class _Pieces(dict[str, tuple[int, ...]]):
    """The token ids of pieces, each with `before` in front; computed on first use."""

    def __init__(self, tokenizer: Tokenizer, before: str) -> None:
        super().__init__()
        self._tokenizer, self._before = tokenizer, before

    def __missing__(self, piece: str) -> tuple[int, ...]:
        if self._before and (not piece or piece[0].isspace()):
            raise KeyError  # the tokenizer does not cut the text here
        ids = tuple(self._tokenizer.encode(self._before + piece))
        if len(self) > _KEPT_PIECES:
            self.clear()
        if len(piece) <= _LONG_PIECE:
            self[piece] = ids
        return ids


class Prompts:
    """Counts prompt tokens and, for a prefix cache, returns their ids."""

    def __init__(self) -> None:
        self._tokenizer = load(None)
        self._first = _Pieces(self._tokenizer, "")
        self._further = _Pieces(self._tokenizer, " ")
        for word in words():
            self._further[word]
        self._kept_count = lru_cache(_KEPT_TEXTS)(self._count)

    def count(self, parts: Parts) -> int:
        return sum(
            len(part) if not isinstance(part, str)
            else self._kept_count(part) if len(part) <= _LONG_TEXT
            else self._count(part)
            for part in parts
        )  # fmt: skip

    def _count(self, text: str) -> int:
        return sum(map(len, self._pieces(text)))

    def ids(self, parts: Parts) -> list[int]:
        pieces = (self._pieces(part) if isinstance(part, str) else (part,) for part in parts)
        return [token for part in pieces for piece in part for token in piece]

    def _pieces(self, text: str) -> list[tuple[int, ...]]:
        """Return the text's token ids, in pieces."""
        first, *further = text.split(" ")
        try:
            return list(chain((self._first[first],), map(self._further.__getitem__, further)))
        except KeyError:
            return [tuple(self._tokenizer.encode(text))]


class Words:
    """An endless text of one-token words, none of which needs escaping in JSON; each request starts at its own position."""

    def __init__(self) -> None:
        self.words = [(" " + word).encode() for word in words()]
        """One word per position; after the last comes the first."""
        self._twice = self.words * 2

    def text(self, at: int, count: int) -> bytes:
        """Return `count` words from position `at` on."""
        size = len(self.words)
        at %= size
        words = self._twice if count <= size else self.words * (count // size + 2)
        return b"".join(words[at : at + count])


def vector(part: str | list[int], dimensions: int | None) -> np.ndarray:
    """Return the embedding of a text or of token ids: a vector of length 1 that depends on nothing else."""
    text = part if isinstance(part, str) else " ".join(map(str, part))
    noise = hashlib.shake_256(text.encode()).digest(dimensions or DIMENSIONS)
    made = np.frombuffer(noise, np.uint8).astype(np.float32) - np.float32(127.5)
    return made / np.linalg.norm(made)
