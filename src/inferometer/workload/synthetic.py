"""Prompts of exactly so many tokens, by any tokenizer, from the built-in corpus.

A prompt is a few words that no other prompt starts with, so that a server's prefix cache cannot flatter it, then text of
the corpus from some sentence on, then words of one token to make up the number:

    lantern orchard velvet The captain repaired the rusty anchor at the harbour. Most sailors are
    [ its own head       ] [ corpus, from a sentence's start                                   ] [ filling ]

How many tokens a word adds is measured once for each word of the corpus; a prompt's count is then a sum, and the right
place to cut is found by bisection, for all prompts at once. Tokens that span words would make the sum wrong: prompts by a
tokenizer that is not ours are therefore counted as a whole, and those that are off are made anew, too long, and cut.
"""

from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config.schema import Synthetic
from inferometer.errors import UserError
from inferometer.random_numbers import random_bits, shuffled
from inferometer.types import Request
from inferometer.workload import tokenizer as tokenizers
from inferometer.workload.tokenizer import Tokenizer

HEAD = 3
"""Words that a prompt has for itself."""
ENOUGH = 64
"""With fewer words of one token than this, prompts start with longer words instead."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def build(spec: Synthetic, seed: int, ids: Sequence[int]) -> list[Request]:
    tokenizer = tokenizers.load(spec.tokenizer)
    texts = prompts(tokenizer, spec.input, seed, ids)
    return [Request(id, text, spec.input, spec.output) for id, text in zip(ids, texts, strict=True)]


def distinct(spec: Synthetic) -> None:
    """As many as are asked for."""


def content(spec: Synthetic) -> bytes:
    """The corpus."""
    return tokenizers.prose().encode()


def prompts(tokenizer: Tokenizer, n: int, seed: int, ids: Sequence[int]) -> list[str]:
    """One prompt of n tokens for each id."""
    numbers = np.array(ids, dtype=np.uint64)
    texts = _compose(_material(tokenizer, n), n, seed, numbers)
    if tokenizer.path.parent != tokenizers.BUILTIN:  # whose counts add up by construction, see tokenizer.words
        counts = tokenizer.count_batch(texts)
        for i, count in enumerate(counts):
            if count != n:
                texts[i] = _mend(tokenizer, n, seed, numbers[i : i + 1])
    return texts


# --- what prompts are made of, for one tokenizer ---------------------------------------------------------------------


class _Material(msgspec.Struct, frozen=True):
    text: str
    """Paragraphs in a row, as often as the longest prompt needs."""
    places: NDArray[np.int64]
    """Where each word starts, its space included; and the end of the text."""
    tokens: NDArray[np.int64]
    """Tokens before each of these places."""
    sentences: NDArray[np.int64]
    """Words that start a sentence."""
    starters: list[str]
    starter_tokens: NDArray[np.int64]
    """Words for the start of a prompt, and how many tokens each is there."""
    followers: list[str]
    follower_tokens: NDArray[np.int64]
    """Words for after that."""
    singles: list[str]
    """Those of them that add one token; may be empty."""


@cache
def _measured(tokenizer: Tokenizer) -> _Material:
    """The corpus once, each of its words measured."""
    words = [word for line in tokenizers.prose().splitlines() if line[-1] in '.?!"' for word in line.split(" ")]
    kinds = {word: number for number, word in enumerate(dict.fromkeys(words))}
    alone = tokenizer.count("a")
    added = np.maximum(np.array(tokenizer.count_batch(f"a {word}" for word in kinds)) - alone, 0)
    if not added.any():
        raise UserError(
            f"tokenizer {tokenizer.name} finds no tokens in English text", "give another data.tokenizer, or none"
        )
    order = np.array([kinds[word] for word in words])
    ends = np.array([word[-1] in '.?!"' for word in words])
    plain = [word for word in tokenizers.words() if len(word) > 2]
    starts = np.array(tokenizer.count_batch(plain))
    follows = np.array(tokenizer.count_batch(f"a {word}" for word in plain)) - alone
    starters, starter_tokens = _ones(plain, starts)
    followers, follower_tokens = _ones(plain, follows)
    return _Material(
        text=" " + " ".join(words),
        places=np.concatenate(([0], np.cumsum([len(word) + 1 for word in words]))),
        tokens=np.concatenate(([0], np.cumsum(added[order]))),
        sentences=np.concatenate(([0], np.flatnonzero(ends)[:-1] + 1)),
        starters=starters,
        starter_tokens=starter_tokens,
        followers=followers,
        follower_tokens=follower_tokens,
        singles=[word for word, count in zip(plain, follows, strict=True) if count == 1],
    )


def _ones(words: list[str], counts: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Those of one token if there are enough, else all."""
    keep = counts == 1 if np.count_nonzero(counts == 1) >= ENOUGH else np.ones(len(words), dtype=bool)
    return [word for word, kept in zip(words, keep, strict=True) if kept], counts[keep]


@cache
def _repeated(tokenizer: Tokenizer, times: int) -> _Material:
    """The same with the text several times over."""
    once = _measured(tokenizer)
    rounds = np.arange(times)[:, None]
    return msgspec.structs.replace(
        once,
        text=once.text * times,
        places=np.append((once.places[:-1] + rounds * once.places[-1]).ravel(), times * once.places[-1]),
        tokens=np.append((once.tokens[:-1] + rounds * once.tokens[-1]).ravel(), times * once.tokens[-1]),
    )


def _material(tokenizer: Tokenizer, n: int) -> _Material:
    """So much text that n tokens can start at any sentence of the first time."""
    return _repeated(tokenizer, 1 + -(-n // max(1, int(_measured(tokenizer).tokens[-1]))))


# --- putting them together -------------------------------------------------------------------------------------------


def _compose(made_of: _Material, n: int, seed: int, ids: NDArray[np.uint64]) -> list[str]:
    """Prompts whose words' tokens sum up to n."""
    heads, used = _heads(made_of, min(HEAD, n), seed, ids)
    budget = np.maximum(n - used, 0)
    first = made_of.sentences[random_bits(seed, ids, "body") % np.uint64(len(made_of.sentences))]
    last = np.searchsorted(made_of.tokens, made_of.tokens[first] + budget, side="right") - 1
    missing = budget - (made_of.tokens[last] - made_of.tokens[first])
    text, singles = made_of.text, made_of.singles
    bodies = [text[a:b] for a, b in zip(made_of.places[first], made_of.places[last], strict=True)]
    filling = random_bits(seed, ids, "filling") % np.uint64(max(1, len(singles)))
    return [
        head + body + "".join(f" {singles[(at + j) % len(singles)]}" for j in range(count)) if count and singles else head + body
        for head, body, at, count in zip(heads, bodies, filling.tolist(), missing.tolist(), strict=True)
    ]  # fmt: skip


def _heads(made_of: _Material, words: int, seed: int, ids: NDArray[np.uint64]) -> tuple[list[str], NDArray[np.int64]]:
    """The first words of each prompt, and their tokens.

    They are the id written in words for digits, the fastest digit first: requests near one another differ in the first
    word, and no two share all of them before the digits run out (with the built-in tokenizer, after thousands of millions).
    The digit before is added to each, so that the slower ones vary too.
    """
    digits, digit = [], np.zeros(len(ids), dtype=np.uint64)
    tokens = np.zeros(len(ids), dtype=np.int64)
    rest = ids
    for place in range(words):
        choices, counts = (
            (made_of.followers, made_of.follower_tokens) if place else (made_of.starters, made_of.starter_tokens)
        )
        digit = (rest + digit) % np.uint64(len(choices))
        rest = rest // np.uint64(len(choices))
        chosen = shuffled(seed, len(choices), f"word {place}")[digit]
        digits.append([choices[i] for i in chosen.tolist()])
        tokens += counts[chosen]
    return [" ".join(row) for row in zip(*digits, strict=True)], tokens


# --- where the sum is wrong ------------------------------------------------------------------------------------------


def _mend(tokenizer: Tokenizer, n: int, seed: int, id: NDArray[np.uint64]) -> str:
    """The same prompt made longer than needed, cut near the end of its nth token, with another ending if it takes one."""
    for longer in (2 * n + 16, 8 * n + 64):
        text = _compose(_material(tokenizer, longer), longer, seed, id)[0]
        ends = tokenizer.ends(text)
        if len(ends) < n:
            continue
        nearest = sorted(range(max(0, ends[n - 1] - 12), ends[n - 1] + 12), key=lambda cut: abs(cut - ends[n - 1]))
        endings = _endings(tokenizer, int(random_bits(seed, id, "ending")[0]))
        for cuts, ends_with in ((nearest[:1], [""]), (nearest[1:], [""]), *(([cut], endings) for cut in nearest)):
            tries = [(text[:cut].rstrip() + ending).lstrip() for cut in cuts for ending in ends_with]
            counts = tokenizer.count_batch(tries)
            if n in counts:
                return tries[counts.index(n)]
    raise UserError(
        f"tokenizer {tokenizer.name} makes no prompt of exactly {n} token{'s' * (n > 1)} from the built-in corpus",
        "give another data.input or data.tokenizer, or prompts of your own with data.type: jsonl",
    )


def _endings(tokenizer: Tokenizer, turn: int) -> list[str]:
    """Short things to end with, of which a text takes one token more or fewer than of another."""
    singles = _measured(tokenizer).singles
    words = [f" {singles[(turn + j) % len(singles)]}" for j in range(min(6, len(singles)))]
    start = turn % len(LETTERS)
    return [*words, *LETTERS[start:], *LETTERS[:start], "."]
