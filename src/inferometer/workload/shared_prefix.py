"""Prompts that share prefixes: groups with a prefix each, and questions that follow it.

    [ tiers: texts that several groups share ][ the group's prefix ][ question ]

A request draws its group and its question from its id, by the popularity of the groups. With `hit`, some requests start with a
text of their own instead, which has the length of their group's prefix.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.config.data import SharedPrefix
from inferometer.errors import UserError
from inferometer.portable_math import exp, log
from inferometer.random_numbers import random_bits, shuffled, uniforms
from inferometer.types import Messages, Request
from inferometer.workload import lengths, text
from inferometer.workload import tokenizer as tokenizers
from inferometer.workload.tokenizer import Tokenizer

Keys = NDArray[np.uint64]
Integers = NDArray[np.int64]

_PROMPTS = 16
"""Questions per group if the config does not say."""
_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: its multiples are spread evenly over the numbers of 64 bits."""


def build(spec: SharedPrefix, seed: int, ids: Sequence[int]) -> list[Request]:
    numbers = np.array(ids, dtype=np.uint64)
    groups, questions = _drawn(spec, seed, numbers)
    before = _prefix_lengths(spec, seed)
    alone = np.flatnonzero(~_is_shared(spec, seed, numbers, before))
    prefixes = _prefixes(spec, seed, groups, before, alone, numbers)
    after, outputs = lengths.pairs(spec.question, spec.output, seed, questions, correlation=spec.correlation)
    tokenizer, salt, is_text = tokenizers.load(spec.tokenizer), text.salt_of(spec.salt), spec.prefix_as == "text"
    made = text.texts(tokenizer, after, seed, questions, salt=salt, purpose="question", continues=is_text)
    if is_text:
        made = text.fit(tokenizer, prefixes, made, after)
    rows = zip(ids, prefixes, made, (before[groups] + after).tolist(), outputs.tolist(), strict=True)
    return [
        Request(id, prefix + question if is_text else _chat(prefix, question), n_in, n_out)
        for id, prefix, question, n_in, n_out in rows
    ]


def distinct(spec: SharedPrefix) -> int | None:
    prompts = _prompts(spec)
    return spec.groups * prompts if prompts and spec.popularity != "zipf" else None


def content(spec: SharedPrefix) -> bytes:
    """The corpus."""
    return tokenizers.prose().encode()


def _prompts(spec: SharedPrefix) -> int:
    """Questions per group; 0: every request has its own."""
    if spec.prompts is not None:
        return spec.prompts
    return _PROMPTS if spec.hit is None else 0


def _chat(prefix: str, question: str) -> Messages:
    return [{"role": "system", "content": prefix}, {"role": "user", "content": question}]


# --- which group and which question -------------------------------------------------------------------------------------


def _drawn(spec: SharedPrefix, seed: int, ids: Keys) -> tuple[Integers, Keys]:
    """The group of each request, and the key of its question: requests with the same key have the same question."""
    groups, prompts = np.uint64(spec.groups), np.uint64(_prompts(spec))
    if spec.popularity == "zipf":
        edges = np.concatenate((np.zeros(1), np.cumsum(_weights(spec))))
        drawn = np.searchsorted(edges, uniforms(seed, ids, "group") * edges[-1], side="right") - 1
        group = np.minimum(drawn, spec.groups - 1).astype(np.uint64)
        number = random_bits(seed, ids, "question") % prompts if prompts else ids
    elif spec.popularity == "round_robin":
        group, number = ids % groups, ids // groups % prompts if prompts else ids
    elif prompts:
        order = shuffled(seed, spec.groups * int(prompts), "prompts").astype(np.uint64)
        chosen = order[ids % np.uint64(len(order))]
        group, number = chosen % groups, chosen // groups
    else:
        group, number = random_bits(seed, ids, "group") % groups, ids
    return group.astype(np.int64), number * groups + group if prompts else number


def _weights(spec: SharedPrefix) -> NDArray[np.float64]:
    """How often each group is used."""
    ranks = np.arange(1.0, spec.groups + 1)
    return exp(-spec.exponent * log(ranks)) if spec.popularity == "zipf" else np.ones(spec.groups)


def _is_shared(spec: SharedPrefix, seed: int, ids: Keys, prefix: Integers) -> NDArray[np.bool_]:
    """Whether each request starts with its group's prefix rather than with a text of its own."""
    if spec.hit is None:
        return np.ones(len(ids), dtype=np.bool_)
    weights = _weights(spec)
    mean = float(np.cumsum(weights * prefix)[-1] / np.cumsum(weights)[-1])
    most = mean / (mean + lengths.mean(spec.question))
    if spec.hit > most:
        raise UserError(
            f"{spec.hit:g} of the prompt tokens cannot be shared: prefixes are {most:.3f} of them",
            f"give at most {int(most * 1000) / 1000:g}, or change data.prefix, data.tiers or data.question",
            key="data.hit",
        )
    start = random_bits(seed, np.zeros(1, dtype=np.uint64), "hit")
    return ids * np.uint64(_GOLDEN) + start < np.uint64(min(int(spec.hit / most * 2**64), 2**64 - 1))


# --- prefixes -----------------------------------------------------------------------------------------------------------


def _prefix_lengths(spec: SharedPrefix, seed: int) -> Integers:
    """Tokens before the question, for each group."""
    total = lengths.sample(spec.prefix, seed, range(spec.groups), "prefix")
    for number, indices in enumerate(_tier_texts(spec)):
        tier = spec.tiers[number]
        total = total + lengths.sample(tier.length, seed, range(tier.groups), f"tier {number}")[indices]
    return total


def _tier_texts(spec: SharedPrefix) -> list[Integers]:
    """For each tier, the index of the text that each group starts with."""
    indices, chain = np.arange(spec.groups), []
    for tier in reversed(spec.tiers):
        indices = indices % tier.groups
        chain.append(indices)
    return chain[::-1]


def _prefixes(
    spec: SharedPrefix, seed: int, groups: Integers, before: Integers, alone: Integers, ids: Keys
) -> list[str]:
    """What each request starts with. `before`: tokens of each group's prefix. `alone`: the indices of the requests that start
    with a text of their own."""
    tokenizer, salt = tokenizers.load(spec.tokenizer), text.salt_of(spec.salt)
    used = np.unique(groups)
    made = dict(zip(used.tolist(), _group_prefixes(spec, seed, used, tokenizer, salt), strict=True))
    prefixes = [made[group] for group in groups.tolist()]
    own = text.texts(tokenizer, before[groups[alone]], seed, ids[alone], salt=salt, purpose="own prefix")
    for index, prefix in zip(alone.tolist(), own, strict=True):
        prefixes[index] = prefix
    return prefixes


def _group_prefixes(spec: SharedPrefix, seed: int, groups: Integers, tokenizer: Tokenizer, salt: str) -> list[str]:
    """The tiers' texts and the prefix of each of these groups."""
    tiers = zip(spec.tiers, _tier_texts(spec), strict=True)
    parts = [(tier.length, indices[groups], f"tier {number}") for number, (tier, indices) in enumerate(tiers)]
    made = [""] * len(groups)
    for number, (length, indices, purpose) in enumerate([*parts, (spec.prefix, groups, "prefix")]):
        keys = indices.astype(np.uint64)
        wanted = lengths.sample(length, seed, keys, purpose)
        added = text.texts(tokenizer, wanted, seed, keys, salt=salt, purpose=purpose, continues=number > 0)
        if number:
            added = text.fit(tokenizer, made, added, wanted)
        made = [before + own for before, own in zip(made, added, strict=True)]
    return made
