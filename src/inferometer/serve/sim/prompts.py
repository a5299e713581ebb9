"""Counts the tokens of prompts, and provides the words of responses.

Both use the built-in tokenizer: each word, with the space before it, is exactly one token, so that a client that
tokenizes the response gets the exact count.

A tokenizer takes about a millisecond for 500 tokens, during which no stream would get its token. But it cuts every text
before each space that is followed by something other than a space, and handles the pieces independently: so pieces are
tokenized once and cached, and a prompt is looked up piece by piece, ten times as fast with the same result. Texts that
are not that regular are tokenized as a whole.
"""

from collections.abc import Sequence
from itertools import chain

from inferometer.workload.tokenizer import Tokenizer, load, words

Parts = Sequence[str | list[int]]
"""A prompt: texts, or token ids."""

_KEPT_TEXTS = 4096
_KEPT_CHARS = 32 * 1024 * 1024
_KEPT_PIECES = 200_000
_LONG_PIECE = 64
"""Pieces longer than this are not cached."""


class _Irregular(Exception):  # noqa: N818  (a signal, never seen outside)
    pass


class _Pieces(dict[str, tuple[int, ...]]):
    """The token ids of pieces, each with `before` in front; computed on first use."""

    def __init__(self, tokenizer: Tokenizer, before: str) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._before = before

    def __missing__(self, piece: str) -> tuple[int, ...]:
        if self._before and (not piece or piece[0].isspace()):
            raise _Irregular
        ids = tuple(self._tokenizer.encode(self._before + piece))
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
        self._counts: dict[str, int] = {}
        self._chars = 0

    def count(self, parts: Parts) -> int:
        return sum(self._count(part) if isinstance(part, str) else len(part) for part in parts)

    def ids(self, parts: Parts) -> list[int]:
        pieces = (self._pieces(part) if isinstance(part, str) else (part,) for part in parts)
        return [token for part in pieces for piece in part for token in piece]

    def _count(self, text: str) -> int:
        count = self._counts.get(text)
        if count is None:
            count = sum(map(len, self._pieces(text)))
            self._chars += len(text)
            if len(self._counts) >= _KEPT_TEXTS or self._chars > _KEPT_CHARS:
                self._counts.clear()
                self._chars = len(text)
            self._counts[text] = count
        return count

    def _pieces(self, text: str) -> list[tuple[int, ...]]:
        """Return the text's token ids, in pieces."""
        for kept in (self._first, self._further):
            if len(kept) > _KEPT_PIECES:
                kept.clear()
        first, *further = text.split(" ")
        try:
            return list(chain((self._first[first],), map(self._further.__getitem__, further)))
        except _Irregular:
            return [tuple(self._tokenizer.encode(text))]


class Words:
    """An endless text of one-token words, none of which needs escaping in JSON; each request starts at its own position."""

    def __init__(self) -> None:
        self.words = [(" " + word).encode() for word in words()]
        """One word per position; after the last comes the first."""
        self.count = len(self.words)
        self._twice = self.words * 2

    def text(self, at: int, count: int) -> bytes:
        """Return `count` words from position `at` on."""
        at %= self.count
        if count <= self.count:
            return b"".join(self._twice[at : at + count])
        rounds, rest = divmod(count, self.count)
        return b"".join(self._twice[at : at + self.count]) * rounds + self.text(at, rest)
