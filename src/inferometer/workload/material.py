"""What prompts are composed of, measured with one tokenizer: text of a corpus, words to start with, words to fill up with.

How many tokens a slice of the corpus has must be known without encoding it. With most tokenizers no token spans two words
(`Tokenizer.adds_up`): then each distinct word is measured once, and the tokens of a slice are a sum. Otherwise the whole corpus is
encoded, and it is cut only where a token ends. A BPE or unigram tokenizer encodes each side of such a cut alone as it did
both together, because no merge and no best path crossed it.
"""

from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError
from inferometer.workload import corpus as corpora
from inferometer.workload import tokenizer as tokenizers
from inferometer.workload.corpus import Corpus
from inferometer.workload.tokenizer import Tokenizer

BEFORE = "window"
"""The word that words and continuing texts are measured after."""
_ENOUGH = 64
"""If the corpus has fewer words of one token than this, heads use longer words as well, and nothing is filled up."""


class Material(msgspec.Struct, frozen=True):
    text: str
    """The words of the corpus, each after a space, repeated as often as the longest prompt needs."""
    offsets: NDArray[np.int64]
    """Where the text can be cut: before the space of a word; and the end of the text."""
    tokens: NDArray[np.int64]
    """Number of tokens before each of these offsets."""
    sentences: NDArray[np.int64]
    """Indices of the offsets at which a sentence starts."""
    starters: list[str]
    starter_tokens: NDArray[np.int64]
    """Words to start a prompt with, and how many tokens each has there."""
    followers: list[str]
    follower_tokens: NDArray[np.int64]
    """Words to continue with, and how many tokens each adds."""
    singles: list[str]
    """Words that add exactly one token, to fill up with. Empty if there are few: then the text can be cut after any token."""


def enough(tokenizer: Tokenizer, n: int, corpus: str | None = None) -> Material:
    """Return material with enough text for n tokens to start at any sentence of the first repetition."""
    return _repeated(tokenizer, corpus, 1 + -(-n // max(1, int(measured(tokenizer, corpus).tokens[-1]))))


@cache
def _repeated(tokenizer: Tokenizer, corpus: str | None, times: int) -> Material:
    """The same with the text repeated."""
    once = measured(tokenizer, corpus)
    rounds = np.arange(times)[:, None]
    return msgspec.structs.replace(
        once,
        text=once.text * times,
        offsets=np.append((once.offsets[:-1] + rounds * once.offsets[-1]).ravel(), times * once.offsets[-1]),
        tokens=np.append((once.tokens[:-1] + rounds * once.tokens[-1]).ravel(), times * once.tokens[-1]),
    )


@cache
def measured(tokenizer: Tokenizer, corpus: str | None = None) -> Material:
    """Return the corpus, without repetition, with the tokens before each point at which it can be cut."""
    source = corpora.load(corpus)
    plain, starts, follows = _plain_words(tokenizer)
    singles = [word for word, count in zip(plain, follows.tolist(), strict=True) if count == 1]
    if tokenizer.has_ends and (not tokenizer.adds_up or len(singles) < _ENOUGH):
        singles = []
    if (singles and source.is_builtin) or not tokenizer.has_ends:
        offsets, tokens, sentences = _by_words(tokenizer, source)
    else:
        offsets, tokens, sentences = _as_a_whole(tokenizer, source, only_words=bool(singles) and source.is_spaced)
    if not tokens[-1]:
        raise UserError(
            f"tokenizer {tokenizer.name} finds no tokens in {'English text' if corpus is None else corpus}",
            "use another data.tokenizer, or leave it out",
        )
    starters, starter_tokens = _prefer_single(plain, starts)
    followers, follower_tokens = _prefer_single(plain, follows)
    return Material(
        text=source.text[: int(offsets[-1])],
        offsets=offsets,
        tokens=tokens,
        sentences=sentences,
        starters=starters,
        starter_tokens=starter_tokens,
        followers=followers,
        follower_tokens=follower_tokens,
        singles=singles,
    )


def _plain_words(tokenizer: Tokenizer) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Words of letters, how many tokens each has at the start of a text, and how many it adds after another word."""
    chosen = [
        (word, starts)
        for word, starts in zip(tokenizers.words(), tokenizers.counts().starts, strict=True)
        if len(word) > 2
    ][: None if tokenizer.is_local else 4 * _ENOUGH]
    plain = [word for word, _ in chosen]
    if tokenizer.name == tokenizers.BUILTIN_NAME:
        return plain, np.array([starts for _, starts in chosen], np.int64), np.ones(len(plain), np.int64)
    return plain, np.array(tokenizer.count_batch(plain), np.int64), _added(tokenizer, plain)


def _prefer_single(words: list[str], counts: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """The words of one token if there are enough of them, otherwise all words; and their numbers of tokens."""
    keep = counts == 1 if np.count_nonzero(counts == 1) >= _ENOUGH else np.ones(len(words), dtype=bool)
    return [word for word, kept in zip(words, keep, strict=True) if kept], counts[keep]


# --- the tokens of the corpus ----------------------------------------------------------------------------------------

_Cuts = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Offsets at which the text can be cut, the tokens before each, and the indices of those at which a sentence starts."""


def _by_words(tokenizer: Tokenizer, source: Corpus) -> _Cuts:
    """Measure each distinct word. Every word is a point to cut at."""
    words = source.words if tokenizer.is_local else source.words[:2000]
    index = {word: i for i, word in enumerate(dict.fromkeys(words))}
    if tokenizer.name == tokenizers.BUILTIN_NAME and source.is_builtin:
        added = np.array(tokenizers.counts().corpus, np.int64)
    else:
        added = _added(tokenizer, list(index))
    order = np.array([index[word] for word in words])
    return (
        np.concatenate(([0], np.cumsum([len(word) + 1 for word in words]))),
        np.concatenate(([0], np.cumsum(added[order]))),
        np.concatenate(([0], np.flatnonzero(source.ends_sentence[: len(words) - 1]) + 1)),
    )


def _as_a_whole(tokenizer: Tokenizer, source: Corpus, only_words: bool) -> _Cuts:
    """Encode the whole text. It can be cut wherever a token ends, or only where a word ends, too."""
    ends = np.array(tokenizer.ends(source.text), np.int64)
    word_ends = np.cumsum([len(word) + 1 for word in source.words])
    at, first = np.unique(ends[::-1], return_index=True)  # the last token that ends there: a character may have several
    before = len(ends) - first
    follows_space = np.isin(at, np.append(word_ends, 0) + 1)  # servers may strip a space at the end
    can_cut = np.isin(at, word_ends) if only_words else ~follows_space
    offsets = np.concatenate(([0], at[can_cut]))
    starts = np.isin(offsets[:-1], word_ends[source.ends_sentence])
    return offsets, np.concatenate(([0], before[can_cut])), np.concatenate(([0], np.flatnonzero(starts)))


def _added(tokenizer: Tokenizer, words: list[str]) -> NDArray[np.int64]:
    """How many tokens each word adds after another word."""
    alone = tokenizer.count(BEFORE)
    counts = np.array(tokenizer.count_batch(f"{BEFORE} {word}" for word in words), np.int64)
    return np.maximum(counts - alone, 0)
