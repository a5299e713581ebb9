"""Generates texts with an exact number of tokens, for any tokenizer, from the built-in corpus or one of the user's own.

A text consists of three parts: a head of a few words that no other prompt starts with, so that the server's prefix cache
does not speed it up; text of the corpus, starting at some sentence; and words of one token each to reach the exact number:

    lantern orchard velvet The captain repaired the rusty anchor at the harbour. Most sailors are
    [ head               ] [ corpus, from the start of a sentence                              ] [ filling ]

The words of the head depend on the id, the seed and the salt of the run (data.salt). Another salt gives other words in the
same number, so it does not change the length of a prompt. A prompt shorter than the head has fewer words to tell runs apart by.

The tokens of the parts are measured once for each tokenizer (material.py). The tokens of a prompt are then a sum, and the
point at which to cut the corpus is found by bisection, for all prompts at once. With a tokenizer whose tokens span words,
the sum may be wrong by what happens at the seams. So prompts for any tokenizer but the built-in one are counted as a whole
afterwards, in one batch. Those of the wrong length are composed again with the difference in mind; the few that are still wrong
are generated too long, and cut.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError
from inferometer.random_numbers import random_bits, shuffled
from inferometer.workload import material
from inferometer.workload import tokenizer as tokenizers
from inferometer.workload.material import BEFORE, Material
from inferometer.workload.tokenizer import Tokenizer

HEAD = 3
"""Number of words in the head."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CORRECTIONS = 3
"""How often a text of the wrong length is composed again before it is cut."""
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
) -> list[str]:
    """Generate one text for each key, with this many tokens. The same (seed, key, salt, purpose) gives the same text.

    `purpose` tells apart texts with the same keys, such as prefixes and questions. A text that `continues` another starts with a
    space, and adds its number of tokens to that of any text that ends with a word; if the tokenizer's tokens span words
    (`adds_up` is False), only `fit` makes sure of that. `corpus` is a file; None: the built-in corpus.
    """
    numbers, wanted = np.array(keys, dtype=np.uint64), np.array(lengths, dtype=np.int64)
    composing = _Composing(tokenizer, seed, salt, purpose, continues, corpus)
    made = composing.texts(wanted, numbers)
    if tokenizer.name == tokenizers.BUILTIN_NAME and corpus is None:  # its counts add up, see tokenizer.words
        return made
    wrong, excess = np.arange(len(wanted)), np.zeros(len(wanted), np.int64)
    for attempt in range(_CORRECTIONS + 1):
        counts = _counted(tokenizer, [made[i] for i in wrong.tolist()], continues)
        excess[wrong] += counts - wanted[wrong]
        wrong = wrong[counts != wanted[wrong]]
        if not len(wrong) or attempt == _CORRECTIONS:
            break
        again = composing.texts(wanted[wrong], numbers[wrong], excess[wrong], attempt + 1)
        for i, text in zip(wrong.tolist(), again, strict=True):
            made[i] = text
    for i in wrong.tolist():
        made[i] = composing.cut_to_length(int(wanted[i]), numbers[i : i + 1])
    return made


def salt_of(setting: str) -> str:
    """The salt of the texts for data.salt; empty: none. `run` has no effect until it is replaced by the run's own word (workload.salted)."""
    return "" if setting in ("none", "run") else setting


def _counted(tokenizer: Tokenizer, made: list[str], continues: bool) -> NDArray[np.int64]:
    """The tokens that each text has or, if it continues another, adds."""
    if not continues:
        return np.array(tokenizer.count_batch(made), np.int64)
    counts = tokenizer.count_batch(BEFORE + text for text in made)
    return np.array(counts, np.int64) - tokenizer.count(BEFORE)


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
        self,
        lengths: NDArray[np.int64],
        keys: NDArray[np.uint64],
        excess: NDArray[np.int64] | int = 0,
        correction: int = 0,
    ) -> list[str]:
        """Texts whose parts have these numbers of tokens in total.

        A correction, from 1 on, leaves out what the text before it had in `excess` or, if nothing can be filled up, starts at
        another sentence.
        """
        parts = material.enough(self._tokenizer, int((lengths - excess).max(initial=1)), self._corpus)
        heads, used = self._heads(parts, lengths, keys)
        number = self._random("body", keys) % np.uint64(len(parts.sentences))
        if parts.singles:
            first = parts.sentences[number]
            budget = np.maximum(lengths - used - excess, 0)
            last = np.searchsorted(parts.tokens, parts.tokens[first] + budget, side="right") - 1
            missing = budget - (parts.tokens[last] - parts.tokens[first])
        else:
            first, last = self._exact_slices(parts, heads, used, number + np.uint64(correction * _SENTENCES), lengths)
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
        counts = _counted(self._tokenizer, [head + parts.text[a:b] for head, a, b in slices], self._continues)
        return counts - (parts.tokens[last] - parts.tokens[first])

    def _random(self, what: str, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return random_bits(self._seed, keys, f"{what} {self._purpose}".strip())

    def _heads(
        self, parts: Material, lengths: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> tuple[list[str], NDArray[np.int64]]:
        """The first words of each text, and how many tokens they have."""
        heads, used = [""] * len(keys), np.zeros(len(keys), dtype=np.int64)
        words = np.minimum(lengths, HEAD)
        for count in np.unique(words).tolist():
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

    def cut_to_length(self, n: int, key: NDArray[np.uint64]) -> str:
        """Generate the same text with more tokens and cut it near the end of its nth, with another ending if necessary."""
        tokenizer, before = self._tokenizer, BEFORE if self._continues else ""
        alone = tokenizer.count(before) if before else 0
        for longer in (2 * n + 16, 8 * n + 64):
            text = before + self.texts(np.array([longer]), key)[0]
            ends = _ends_up_to(tokenizer, text, n + alone)
            if not ends:
                continue
            window = range(max(len(before), ends[0] - 12), ends[0] + 12)
            nearest = [*ends, *sorted(window, key=lambda cut: abs(cut - ends[0]))]
            random = int(random_bits(self._seed, key, "ending")[0])
            endings = _endings(material.measured(tokenizer, self._corpus), random)
            for cuts, ends_with in ((nearest[:1], [""]), (nearest[1:], [""]), *(([cut], endings) for cut in nearest)):
                tries = [(text[:cut].rstrip() + ending).lstrip() for cut in cuts for ending in ends_with]
                counts = tokenizer.count_batch(tries)
                if n + alone in counts:
                    return tries[counts.index(n + alone)].removeprefix(before)
        raise _impossible(tokenizer, n)


def _ends_up_to(tokenizer: Tokenizer, text: str, n: int) -> list[int]:
    """Where the nth token of the text ends, and some before it; empty if it has fewer tokens.

    If the tokenizer does not say where tokens end, it is where n tokens are counted first.
    """
    if tokenizer.has_ends:
        ends = tokenizer.ends(text)
        return ends[max(0, n - 4) : n][::-1] if n <= len(ends) else []
    low, high = 0, len(text)
    if tokenizer.count(text) < n:
        return []
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokenizer.count(text[:middle]) < n else (low, middle)
    return [high]


def _endings(parts: Material, random: int) -> list[str]:
    """Short endings that add different numbers of tokens to a text."""
    singles = parts.singles
    words = [f" {singles[(random + j) % len(singles)]}" for j in range(min(6, len(singles)))]
    start = random % len(LETTERS)
    return [*words, *LETTERS[start:], *LETTERS[:start], "."]


def _impossible(tokenizer: Tokenizer, n: int) -> UserError:
    return UserError(
        f"tokenizer {tokenizer.name} cannot make a prompt of exactly {n} token{'s' * (n > 1)} from its corpus",
        "change data.input or data.tokenizer, or give your own prompts with data.type: jsonl",
    )


# --- texts that continue others --------------------------------------------------------------------------------------

_VARIANTS = 128
_JOINTS = (" ", "\n", ". ", ", ", "; ", ": ", " - ", "/", "'", *LETTERS)
"""What a part may start with if the tokenizer's tokens span words."""


def fit(
    tokenizer: Tokenizer, before: Sequence[str], parts: Sequence[str], lengths: Sequence[int] | NDArray[np.int64]
) -> list[str]:
    """Return texts like `parts` that each add exactly this many tokens to the text before it, and leave its tokens as they are.

    `parts` are texts made with `continues=True`. With a tokenizer that `adds_up` they fit already. Otherwise those that do not
    get another start and another ending. The result depends on the text before, the part and its length alone: prompts
    that share what comes before also share the tokens.
    """
    if tokenizer.adds_up:
        return list(parts)
    joined = tokenizer.encode_batch([start + part for start, part in zip(before, parts, strict=True)])
    starts = tokenizer.encode_batch(before)
    rows = zip(before, starts, parts, joined, np.asarray(lengths).tolist(), strict=True)
    return [
        part if _fits(ids, whole, length) else _fitted(tokenizer, start, ids, part, length)
        for start, ids, part, whole, length in rows
    ]


def _fits(start: list[int], whole: list[int], added: int) -> bool:
    return len(whole) == len(start) + added and whole[: len(start)] == start


def _fitted(tokenizer: Tokenizer, before: str, start: list[int], part: str, length: int) -> str:
    """Change how the part starts until no token spans the seam, and cut it after its last token."""
    followers = material.measured(tokenizer).followers
    words = part.split(" ")[1:]  # a continuing text starts with a space
    random = int.from_bytes(part.encode()[:8], "little") + length
    more = [followers[(random + j) % len(followers)] for j in range(length)]
    for variant in range(_VARIANTS):
        first = words[0] if variant == 0 else followers[(random + variant * 7) % len(followers)]
        text: str = before + _JOINTS[variant % len(_JOINTS)] + " ".join([first, *words[1:], *more])
        for end in _ends_up_to(tokenizer, text, len(start) + length)[:1]:
            is_stripped = text[:end] == text[:end].rstrip()
            if end > len(before) and is_stripped and _fits(start, tokenizer.encode(text[:end]), length):
                return text[len(before) : end]
    raise _impossible(tokenizer, length)
