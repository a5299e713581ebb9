"""Counts the tokens of prompts, and provides the words of responses and the vectors of embeddings.

Both use the built-in tokenizer: each word, with the space before it, is exactly one token, so that a client that
tokenizes the response gets the exact count.

A tokenizer takes about a millisecond for 500 tokens, during which no stream would get its token. But it cuts every text
before each space that is followed by something other than a space, and handles the pieces independently: so pieces are
tokenized once and cached, and a prompt is looked up piece by piece, ten times as fast with the same result. Texts that
are not that regular are tokenized as a whole; if they are long, in a background thread.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.openai.requests import Part
from inferometer.workload.tokenizer import load, words

DIMENSIONS = 384  # of an embedding if the request sets none
_KEPT_PIECES, _LONG_PIECE = 200_000, 64
_KEPT_COUNTS = 2048
"""How many pieces, and counts of texts, are cached, and the length from which pieces are not."""
LONGEST_TOKEN = 16
"""Bytes of the longest token: a text has at least a token for this many characters."""
_LONG, _NEW, _EACH = 65_536, 8192, 16
"""Characters of a prompt, and those of its pieces that are new (plus some for each), from which it is Slow: 2 ms of work."""


class Slow(Exception):  # noqa: N818  (not an error)
    """Tokenizing the prompt would take so long that streams had to wait: it belongs into a thread."""


class Prompts(BoundedCache[str, list[int]]):
    """Counts prompt tokens and, for a prefix cache, returns their ids. Its items are the ids of pieces, which are the
    keys without the space before them; they are computed on first use."""

    def __init__(self) -> None:
        super().__init__(_KEPT_PIECES)
        self._tokenizer, self._left = load(None), 1 << 62
        self._counts: BoundedCache[str, int] = BoundedCache(_KEPT_COUNTS)
        for word in words():
            self[word]

    def __missing__(self, piece: str) -> list[int]:
        if not piece or piece[0].isspace():
            raise KeyError  # the tokenizer does not cut the text here
        ids = self._encode(" " + piece)
        return self.keep(piece, ids) if len(piece) <= _LONG_PIECE else ids

    def _encode(self, text: str) -> list[int]:
        self._left -= len(text) + _EACH
        if self._left < 0:
            raise Slow
        return self._tokenizer.encode(text)

    def count(self, parts: Sequence[Part]) -> int:
        """Return the number of tokens; raises Slow."""
        self._begin(parts)
        return sum(
            [len(part) if isinstance(part, list) else self._counts.get(part) or self._count(part) for part in parts]
        )

    def _count(self, text: str) -> int:
        return self._counts.keep(text, sum(map(len, self._pieces(text))))

    def ids(self, parts: Sequence[Part]) -> list[int]:
        """Return the tokens; raises Slow."""
        self._begin(parts)
        return [token for part in parts for piece in self._pieces(part) for token in piece]

    def slow_ids(self, parts: Sequence[Part]) -> list[int]:
        """Return the tokens of any prompt; in any thread. Functions for batches let other threads run."""
        rows = (self._tokenizer.encode_batch([part])[0] if isinstance(part, str) else part for part in parts)
        return [token for row in rows for token in row]

    def _begin(self, parts: Sequence[Part]) -> None:
        self._left = _NEW
        if sum([len(part) for part in parts if isinstance(part, str)]) > _LONG:
            raise Slow

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
