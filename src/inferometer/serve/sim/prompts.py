"""Tokens in and tokens out: how many a prompt has, and the words that answers are made of.

Both come from the built-in tokenizer: each word, with the space before it, is exactly one token, so that a client which
tokenises the answer again gets the exact count.

A tokenizer takes about a millisecond for 500 tokens, in which no stream would get its token. But it cuts every text before
each space that something other than a space follows, and treats the pieces alone: so pieces are tokenised once and kept,
and a prompt is looked up piece by piece, ten times as fast and exactly the same. Texts that are not so regular go to the
tokenizer whole.
"""

from itertools import chain

from inferometer.serve.sim.frames import json_bytes
from inferometer.serve.sim.openai import CompletionRequest
from inferometer.workload.tokenizer import Tokenizer, load, words

_KEPT_TEXTS = 4096
_KEPT_CHARS = 32 * 1024 * 1024
_KEPT_PIECES = 200_000
_LONG_PIECE = 64
"""Characters of a piece that is not worth keeping."""


class _Irregular(Exception):  # noqa: N818  (a signal, never seen outside)
    pass


class _Pieces(dict[str, tuple[int, ...]]):
    """The token ids of pieces, each with `before` in front; made when first asked for."""

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
    """Counts prompts and, for a prefix cache, gives their token ids."""

    def __init__(self) -> None:
        self._tokenizer = load(None)
        self._first = _Pieces(self._tokenizer, "")
        self._further = _Pieces(self._tokenizer, " ")
        for word in words():
            self._further[word]
        self._counts: dict[str, int] = {}
        self._chars = 0

    def count(self, ask: CompletionRequest) -> int:
        return len(ask.ids) if ask.ids else sum(map(self._count, ask.texts))

    def ids(self, ask: CompletionRequest) -> list[int]:
        if ask.ids:
            return list(ask.ids)
        return [token for text in ask.texts for piece in self._pieces(text) for token in piece]

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
        """The text's token ids, in pieces."""
        for kept in (self._first, self._further):
            if len(kept) > _KEPT_PIECES:
                kept.clear()
        first, *further = text.split(" ")
        try:
            return list(chain((self._first[first],), map(self._further.__getitem__, further)))
        except _Irregular:
            return [tuple(self._tokenizer.encode(text))]


class Words:
    """An endless text of one-token words, JSON-escaped; each request starts at its own place in it."""

    def __init__(self) -> None:
        self._words = [json_bytes(" " + word)[1:-1] for word in words()]
        self._twice = self._words * 2
        self._plain = [(" " + word).encode() for word in words()]
        self.count = len(self._words)

    def plain(self, at: int, count: int) -> bytes:
        """The same as text itself."""
        words = (self._plain[(at + i) % self.count] for i in range(count))
        return b"".join(words)

    def text(self, at: int, count: int) -> bytes:
        """`count` words from place `at` on."""
        at %= self.count
        if count == 1:
            return self._words[at]
        if count <= self.count:
            return b"".join(self._twice[at : at + count])
        rounds, rest = divmod(count, self.count)
        return b"".join(self._twice[at : at + self.count]) * rounds + self.text(at, rest)
