"""Generates texts with an exact number of tokens, for any tokenizer, from the built-in corpus or one of the user's own.

A text consists of three parts: a head of a few words that no other prompt starts with, so that the server's prefix cache
does not speed it up; text of the corpus, starting at some sentence; and words of one token each to reach the exact number:

    lantern orchard velvet The captain repaired the rusty anchor at the harbour. Most sailors are
    [ head               ] [ corpus, from the start of a sentence                              ] [ filling ]

The words of the head depend on the id, the seed and the salt of the run (data.salt). Another salt gives other words in the
same number, so it does not change the length of a prompt. A prompt shorter than the head has fewer words to tell runs apart by.

The tokens of the parts are measured once for each tokenizer (material.py). The tokens of a prompt are then a sum, and the
point at which to cut the corpus is found by bisection, for all prompts at once. With a tokenizer whose tokens span words,
the sum may be wrong by what happens at the seams; exact_length.py corrects that.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.random_numbers import random_bits, shuffled
from inferometer.workload import material
from inferometer.workload import tokenizer as tokenizers
from inferometer.workload.exact_length import SPACES, Around, counted, exactly, fit
from inferometer.workload.material import Material
from inferometer.workload.tokenizer import Tokenizer

__all__ = ["HEAD", "SPACES", "fit", "random_words", "salt_of", "texts"]

HEAD = 3
"""Number of words in the head."""
_SENTENCES = 24
"""How many sentences are tried as the start of a text that must end after a certain token."""
_SEAM = 32
"""Characters of the corpus that are encoded together with a head to count its tokens."""


def texts(
    tokenizer: Tokenizer,
    lengths: Sequence[int] | NDArray[np.int64],
    seed: int,
    keys: Sequence[int] | NDArray[np.uint64],
    *,
    salt: str = "",
    purpose: str = "",
    continues: bool = False,
    corpus: str | None = None,
    around: Around | None = None,
) -> list[str]:
    """Generate one text for each key, with this many tokens. The same (seed, key, salt, purpose) gives the same text.

    `purpose` tells apart texts with the same keys, such as prefixes and questions. A text that `continues` another starts with a
    space, and adds its number of tokens to that of any text that ends with a word; if the tokenizer's tokens span words
    (`adds_up` is False), only `fit` makes sure of that. `corpus` is a file; None: the built-in corpus. `around` makes the
    server's prompt from a text: then the tokens of that prompt count.
    """
    numbers, wanted = np.array(keys, dtype=np.uint64), np.array(lengths, dtype=np.int64)
    composing = _Composing(tokenizer, seed, salt, purpose, continues, corpus)
    if tokenizer.name == tokenizers.BUILTIN_NAME and corpus is None and around is None:
        return composing.texts(wanted, numbers)  # its counts add up, see tokenizer.words
    return exactly(tokenizer, composing.texts, wanted, numbers, continues, around)


def salt_of(setting: str) -> str:
    """The salt of the texts for data.salt; empty: none. `run` has no effect until it is replaced by the run's own word (workload.salted)."""
    return "" if setting in ("none", "run") else setting


# --- composing prompts -----------------------------------------------------------------------------------------------


class _Composing:
    """Composes texts for one call of `texts`."""

    def __init__(
        self, tokenizer: Tokenizer, seed: int, salt: str, purpose: str, continues: bool, corpus: str | None
    ) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._salt = salt
        self._purpose = purpose
        self._continues = continues
        self._corpus = corpus

    def texts(
        self, lengths: NDArray[np.int64], keys: NDArray[np.uint64], excess: NDArray[np.int64] | int = 0
    ) -> list[str]:
        parts = material.enough(self._tokenizer, int((lengths - excess).max(initial=1)), self._corpus)
        heads, used = self._heads(parts, lengths, keys)
        number = self._random("body", keys) % np.uint64(len(parts.sentences))
        if parts.singles:
            first = parts.sentences[number]
            budget = np.maximum(lengths - used - excess, 0)
            last = np.searchsorted(parts.tokens, parts.tokens[first] + budget, side="right") - 1
            missing = budget - (parts.tokens[last] - parts.tokens[first])
        else:
            first, last = self._exact_slices(parts, heads, used, number, lengths - excess)
            missing = np.zeros(len(keys), np.int64)
        text, singles = parts.text, parts.singles
        bodies = [text[a:b] for a, b in zip(parts.offsets[first].tolist(), parts.offsets[last].tolist(), strict=True)]
        filling = self._random("filling", keys) % np.uint64(max(1, len(singles)))
        rows = zip(heads, bodies, filling.tolist(), missing.tolist(), strict=True)
        return [
            head + body + "".join(f" {singles[(at + j) % len(singles)]}" for j in range(count)) if count else head + body
            for head, body, at, count in rows
        ]  # fmt: skip

    def _exact_slices(
        self,
        parts: Material,
        heads: list[str],
        used: NDArray[np.int64],
        number: NDArray[np.uint64],
        lengths: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where slices start and end that need no filling: from this sentence on, or from a later one if it cannot be cut there."""
        first, last = np.zeros(len(number), np.int64), np.zeros(len(number), np.int64)
        pending = np.arange(len(number))
        for attempt in range(_SENTENCES):
            start = parts.sentences[(number[pending] + np.uint64(attempt)) % np.uint64(len(parts.sentences))]
            if not self._tokenizer.adds_up:
                used[pending] = self._used(parts, [heads[i] for i in pending.tolist()], start)
            budget = np.maximum(lengths[pending] - used[pending], 0)
            end = np.searchsorted(parts.tokens, parts.tokens[start] + budget, side="right") - 1
            first[pending], last[pending] = start, end
            pending = pending[parts.tokens[end] - parts.tokens[start] != budget]
            if not len(pending):
                break
        return first, last

    def _used(self, parts: Material, heads: list[str], first: NDArray[np.int64]) -> NDArray[np.int64]:
        """The tokens of each head before a sentence, for tokenizers whose tokens span words."""
        last = np.minimum(np.searchsorted(parts.offsets, parts.offsets[first] + _SEAM), len(parts.offsets) - 1)
        slices = zip(heads, parts.offsets[first].tolist(), parts.offsets[last].tolist(), strict=True)
        counts = counted(self._tokenizer, [head + parts.text[a:b] for head, a, b in slices], self._continues)
        return counts - (parts.tokens[last] - parts.tokens[first])

    def _random(self, what: str, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return random_bits(self._seed, keys, f"{what} {self._purpose}".strip())

    def _heads(
        self, parts: Material, lengths: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> tuple[list[str], NDArray[np.int64]]:
        """The first words of each text, and how many tokens they have."""
        heads, used = [""] * len(keys), np.zeros(len(keys), dtype=np.int64)
        words = np.minimum(lengths, HEAD)
        for count in np.flatnonzero(np.bincount(words)).tolist():  # np.unique would import numpy.ma
            of_count = np.flatnonzero(words == count)
            own, used[of_count] = self._heads_of(parts, count, keys[of_count])
            for i, head in zip(of_count.tolist(), own, strict=True):
                heads[i] = head
        return heads, used

    def _heads_of(self, parts: Material, words: int, keys: NDArray[np.uint64]) -> tuple[list[str], NDArray[np.int64]]:
        """The same for heads of this many words.

        They are the key, written with words as digits and the least significant digit first. So consecutive requests differ in
        their first word, and no two requests have the same head until the digits run out (with the built-in tokenizer, after
        billions of requests). The previous digit is added to each digit, so that the more significant ones vary too. The seed and
        the salt decide which word stands for which digit.
        """
        salt = f"{self._purpose} {self._salt}".strip()
        digits, digit = [], np.zeros(len(keys), dtype=np.uint64)
        tokens = np.zeros(len(keys), dtype=np.int64)
        rest = keys
        for position in range(words):
            follows = self._continues or position > 0
            choices = parts.followers if follows else parts.starters
            counts = parts.follower_tokens if follows else parts.starter_tokens
            digit = (rest + digit) % np.uint64(len(choices))
            rest = rest // np.uint64(len(choices))
            chosen = shuffled(self._seed, len(choices), f"word {position} {salt}".rstrip())[digit]
            digits.append([choices[i] for i in chosen.tolist()])
            tokens += counts[chosen]
        space = " " if self._continues and words else ""
        return [space + " ".join(row) for row in zip(*digits, strict=True)] or [""] * len(keys), tokens


# --- random words ----------------------------------------------------------------------------------------------------


def random_words(
    tokenizer: Tokenizer,
    lengths: Sequence[int] | NDArray[np.int64],
    seed: int,
    keys: Sequence[int] | NDArray[np.uint64],
    *,
    salt: str = "",
    around: Around | None = None,
) -> list[str]:
    """Generate one text of random words for each key, with this many tokens."""
    numbers, wanted = np.array(keys, dtype=np.uint64), np.array(lengths, dtype=np.int64)
    composing = _RandomWords(tokenizer, seed, salt)
    if tokenizer.name == tokenizers.BUILTIN_NAME and around is None:
        return composing.texts(wanted, numbers)
    return exactly(tokenizer, composing.texts, wanted, numbers, around=around)


class _RandomWords:
    """Composes texts of random words, of one token each if there are such words."""

    def __init__(self, tokenizer: Tokenizer, seed: int, salt: str) -> None:
        self._parts = material.measured(tokenizer)
        self._seed = seed
        self._salt = salt

    def texts(
        self, lengths: NDArray[np.int64], keys: NDArray[np.uint64], excess: NDArray[np.int64] | int = 0
    ) -> list[str]:
        counts = np.maximum(lengths - excess, 1)
        starters, followers = np.array(self._parts.starters, object), np.array(self._parts.followers, object)
        made = []
        for number, numbers in random_rows(self._seed, keys, counts, f"words {self._salt}".strip()):
            first = starters[int(numbers[0] % np.uint64(len(starters)))]
            chosen = numbers[1:] % np.uint64(len(followers))
            taken = len(chosen)
            if not self._parts.singles:
                used = self._parts.follower_tokens[chosen].cumsum()
                taken = int(np.searchsorted(used, counts[number], side="right"))
            made.append(" ".join([first, *followers[chosen[:taken]].tolist()]))
        return made


def random_rows(
    seed: int, keys: NDArray[np.uint64], counts: NDArray[np.int64], purpose: str
) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Yield, for each key, its index and this many random numbers."""
    starts = random_bits(seed, keys, purpose)
    for number, (start, count) in enumerate(zip(starts, counts.tolist(), strict=True)):
        yield number, random_bits(seed, start + np.arange(count, dtype=np.uint64), "row")
