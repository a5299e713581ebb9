"""Generates texts with an exact number of tokens, for any tokenizer, from the built-in corpus.

A text consists of three parts: a head of a few words that no other prompt starts with, so that the server's prefix cache
does not speed it up; text of the corpus, starting at some sentence; and words of one token each to reach the exact number:

    lantern orchard velvet The captain repaired the rusty anchor at the harbour. Most sailors are
    [ head               ] [ corpus, from the start of a sentence                              ] [ filling ]

The words of the head depend on the id, the seed and the salt of the run (data.salt). Another salt gives other words in the
same number, so it does not change the length of a prompt. A prompt shorter than the head has fewer words to tell runs apart by.

How many tokens a word adds is measured once for each word of the corpus. The tokens of a prompt are then a sum, and the
point at which to cut the corpus is found by bisection, for all prompts at once. With a tokenizer whose tokens span words
the sum is wrong. So prompts for any tokenizer but the built-in one are counted as a whole afterwards, and those of the
wrong length are generated again, too long, and cut.
"""

from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError
from inferometer.random_numbers import random_bits, shuffled
from inferometer.workload import tokenizer as tokenizers
from inferometer.workload.tokenizer import Tokenizer

HEAD = 3
"""Number of words in the head."""
ENOUGH = 64
"""If the corpus has fewer words of one token than this, heads use longer words as well."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def texts(
    tokenizer: Tokenizer,
    lengths: Sequence[int] | NDArray[np.int64],
    seed: int,
    keys: Sequence[int] | NDArray[np.uint64],
    *,
    salt: str = "",
    purpose: str = "",
    continues: bool = False,
) -> list[str]:
    """Generate one text for each key, with this many tokens. The same (seed, key, salt, purpose) gives the same text.

    `purpose` tells apart texts with the same keys, such as prefixes and questions. A text that `continues` another starts with a
    space, and adds its number of tokens to that of any text that ends with a word.
    """
    numbers, wanted = np.array(keys, dtype=np.uint64), np.array(lengths, dtype=np.int64)
    made = _compose(tokenizer, wanted, seed, numbers, salt, purpose, continues)
    if tokenizer.path.parent != tokenizers.BUILTIN:  # the built-in one's counts add up, see tokenizer.words
        for i, count in enumerate(_counted(tokenizer, made, continues)):
            if count != wanted[i]:
                made[i] = _cut_to_length(tokenizer, int(wanted[i]), seed, numbers[i : i + 1], salt, purpose, continues)
    return made


def salt_of(setting: str) -> str:
    """The salt of the texts for data.salt; empty: none. `run` has no effect until it is replaced by the run's own word (workload.salted)."""
    return "" if setting in ("none", "run") else setting


def _counted(tokenizer: Tokenizer, made: list[str], continues: bool) -> list[int]:
    """The tokens that each text has or, if it continues another, adds."""
    if not continues:
        return tokenizer.count_batch(made)
    alone = tokenizer.count("a")
    return [count - alone for count in tokenizer.count_batch(f"a{text}" for text in made)]


# --- the material for prompts, measured with one tokenizer -----------------------------------------------------------


class _Material(msgspec.Struct, frozen=True):
    text: str
    """The paragraphs of the corpus, repeated as often as the longest prompt needs."""
    offsets: NDArray[np.int64]
    """Where each word starts in the text, including the space before it; and the end of the text."""
    tokens: NDArray[np.int64]
    """Number of tokens before each of these offsets."""
    sentences: NDArray[np.int64]
    """Indices of the words that start a sentence."""
    starters: list[str]
    starter_tokens: NDArray[np.int64]
    """Words to start a prompt with, and how many tokens each has there."""
    followers: list[str]
    follower_tokens: NDArray[np.int64]
    """Words to continue with, and how many tokens each adds."""
    singles: list[str]
    """The followers that add exactly one token; may be empty."""


@cache
def _measured(tokenizer: Tokenizer) -> _Material:
    """The corpus, without repetition, with the tokens of each of its words."""
    words = tokenizers.paragraph_words()
    index = {word: i for i, word in enumerate(dict.fromkeys(words))}
    plain, added, starts, follows = _counts(tokenizer, list(index))
    if not added.any():
        raise UserError(
            f"tokenizer {tokenizer.name} finds no tokens in English text", "use another data.tokenizer, or leave it out"
        )
    order = np.array([index[word] for word in words])
    ends = np.array([word[-1] in '.?!"' for word in words])
    starters, starter_tokens = _prefer_single(plain, starts)
    followers, follower_tokens = _prefer_single(plain, follows)
    return _Material(
        text=" " + " ".join(words),
        offsets=np.concatenate(([0], np.cumsum([len(word) + 1 for word in words]))),
        tokens=np.concatenate(([0], np.cumsum(added[order]))),
        sentences=np.concatenate(([0], np.flatnonzero(ends)[:-1] + 1)),
        starters=starters,
        starter_tokens=starter_tokens,
        followers=followers,
        follower_tokens=follower_tokens,
        singles=[word for word, count in zip(plain, follows, strict=True) if count == 1],
    )


def _counts(
    tokenizer: Tokenizer, corpus: list[str]
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Plain words; how many tokens each distinct word of the corpus adds after another; and how many the plain words have at
    the start of a text and add after another word."""
    chosen = [
        (word, starts)
        for word, starts in zip(tokenizers.words(), tokenizers.counts().starts, strict=True)
        if len(word) > 2
    ]
    plain = [word for word, _ in chosen]
    if tokenizer.path.parent == tokenizers.BUILTIN:
        builtin = np.array(tokenizers.counts().corpus, np.int64)
        return plain, builtin, np.array([starts for _, starts in chosen], np.int64), np.ones(len(plain), np.int64)
    alone = tokenizer.count("a")
    added = np.maximum(np.array(tokenizer.count_batch(f"a {word}" for word in corpus), np.int64) - alone, 0)
    follows = np.array(tokenizer.count_batch(f"a {word}" for word in plain), np.int64) - alone
    return plain, added, np.array(tokenizer.count_batch(plain), np.int64), follows


def _prefer_single(words: list[str], counts: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """The words of one token if there are enough of them, otherwise all words; and their numbers of tokens."""
    keep = counts == 1 if np.count_nonzero(counts == 1) >= ENOUGH else np.ones(len(words), dtype=bool)
    return [word for word, kept in zip(words, keep, strict=True) if kept], counts[keep]


@cache
def _repeated(tokenizer: Tokenizer, times: int) -> _Material:
    """The same with the text repeated."""
    once = _measured(tokenizer)
    rounds = np.arange(times)[:, None]
    return msgspec.structs.replace(
        once,
        text=once.text * times,
        offsets=np.append((once.offsets[:-1] + rounds * once.offsets[-1]).ravel(), times * once.offsets[-1]),
        tokens=np.append((once.tokens[:-1] + rounds * once.tokens[-1]).ravel(), times * once.tokens[-1]),
    )


def _material(tokenizer: Tokenizer, n: int) -> _Material:
    """Enough text for n tokens to start at any sentence of the first repetition."""
    return _repeated(tokenizer, 1 + -(-n // max(1, int(_measured(tokenizer).tokens[-1]))))


# --- composing prompts -----------------------------------------------------------------------------------------------


def _compose(
    tokenizer: Tokenizer,
    lengths: NDArray[np.int64],
    seed: int,
    keys: NDArray[np.uint64],
    salt: str,
    purpose: str,
    continues: bool,
) -> list[str]:
    """Texts whose words have these numbers of tokens in total."""
    material = _material(tokenizer, int(lengths.max(initial=1)))
    heads, used = [""] * len(keys), np.zeros(len(keys), dtype=np.int64)
    words = np.minimum(lengths, HEAD)
    for count in np.unique(words):
        of_count = np.flatnonzero(words == count)
        own, used[of_count] = _heads(material, int(count), seed, keys[of_count], f"{purpose} {salt}".strip(), continues)
        for i, head in zip(of_count.tolist(), own, strict=True):
            heads[i] = head
    budget = np.maximum(lengths - used, 0)
    first = material.sentences[random_bits(seed, keys, f"body {purpose}".strip()) % np.uint64(len(material.sentences))]
    last = np.searchsorted(material.tokens, material.tokens[first] + budget, side="right") - 1
    missing = budget - (material.tokens[last] - material.tokens[first])
    text, singles = material.text, material.singles
    bodies = [text[a:b] for a, b in zip(material.offsets[first], material.offsets[last], strict=True)]
    filling = random_bits(seed, keys, f"filling {purpose}".strip()) % np.uint64(max(1, len(singles)))
    return [
        head + body + "".join(f" {singles[(at + j) % len(singles)]}" for j in range(count)) if count and singles else head + body
        for head, body, at, count in zip(heads, bodies, filling.tolist(), missing.tolist(), strict=True)
    ]  # fmt: skip


def _heads(
    material: _Material, words: int, seed: int, ids: NDArray[np.uint64], salt: str, continues: bool
) -> tuple[list[str], NDArray[np.int64]]:
    """The first words of each text, and how many tokens they have.

    They are the key, written with words as digits and the least significant digit first. So consecutive requests differ in
    their first word, and no two requests have the same head until the digits run out (with the built-in tokenizer, after
    billions of requests). The previous digit is added to each digit, so that the more significant ones vary too. The seed and
    the salt decide which word stands for which digit.
    """
    digits, digit = [], np.zeros(len(ids), dtype=np.uint64)
    tokens = np.zeros(len(ids), dtype=np.int64)
    rest = ids
    for position in range(words):
        follows = continues or position > 0
        choices = material.followers if follows else material.starters
        counts = material.follower_tokens if follows else material.starter_tokens
        digit = (rest + digit) % np.uint64(len(choices))
        rest = rest // np.uint64(len(choices))
        chosen = shuffled(seed, len(choices), f"word {position} {salt}".rstrip())[digit]
        digits.append([choices[i] for i in chosen.tolist()])
        tokens += counts[chosen]
    space = " " if continues and words else ""
    return [space + " ".join(row) for row in zip(*digits, strict=True)] or [""] * len(ids), tokens


# --- tokenizers whose tokens span words ------------------------------------------------------------------------------


def _cut_to_length(
    tokenizer: Tokenizer, n: int, seed: int, key: NDArray[np.uint64], salt: str, purpose: str, continues: bool
) -> str:
    """Generate the same text with more tokens and cut it near the end of its nth, with another ending if necessary."""
    before = "a" if continues else ""
    alone = tokenizer.count(before) if before else 0
    for longer in (2 * n + 16, 8 * n + 64):
        text = before + _compose(tokenizer, np.array([longer]), seed, key, salt, purpose, continues)[0]
        ends = tokenizer.ends(text)[alone:]
        if len(ends) < n:
            continue
        nearest = sorted(range(max(0, ends[n - 1] - 12), ends[n - 1] + 12), key=lambda cut: abs(cut - ends[n - 1]))
        endings = _endings(tokenizer, int(random_bits(seed, key, "ending")[0]))
        for cuts, ends_with in ((nearest[:1], [""]), (nearest[1:], [""]), *(([cut], endings) for cut in nearest)):
            tries = [(text[:cut].rstrip() + ending).lstrip() for cut in cuts for ending in ends_with]
            counts = tokenizer.count_batch(tries)
            if n + alone in counts:
                return tries[counts.index(n + alone)].removeprefix(before)
    raise UserError(
        f"tokenizer {tokenizer.name} cannot make a prompt of exactly {n} token{'s' * (n > 1)} from the built-in corpus",
        "change data.input or data.tokenizer, or give your own prompts with data.type: jsonl",
    )


def _endings(tokenizer: Tokenizer, random: int) -> list[str]:
    """Short endings that add different numbers of tokens to a text."""
    singles = _measured(tokenizer).singles
    words = [f" {singles[(random + j) % len(singles)]}" for j in range(min(6, len(singles)))]
    start = random % len(LETTERS)
    return [*words, *LETTERS[start:], *LETTERS[:start], "."]
