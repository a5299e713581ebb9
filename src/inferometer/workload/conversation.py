"""Conversations that are generated: every id has its own, with texts of an exact number of tokens.

The texts of a conversation are its system prompt, what the user adds in each turn and, with `history: recorded`, the responses. As
messages, each text has its tokens by itself. As one text, each but the first continues the text before it and adds its tokens to it.
"""

from collections.abc import Sequence
from itertools import accumulate, cycle

import numpy as np
from numpy.typing import NDArray

from inferometer.config.data import Conversation
from inferometer.config.lengths import Exponential, Length, LogNormal
from inferometer.types import Request, Turn
from inferometer.units import NS
from inferometer.workload import lengths, text
from inferometer.workload import tokenizer as tokenizers
from inferometer.workload.tokenizer import Tokenizer

Keys = NDArray[np.uint64]

_MOST_TURNS = 4096
"""Turns of a conversation, at most: the key of a turn's texts is the id of its conversation times this, plus its number."""
_MICROSECOND = NS // 1_000_000


def build(spec: Conversation, seed: int, ids: Sequence[int]) -> list[Request]:
    counts = turns(spec, seed, ids)
    keys = np.concatenate([_keys(id, count) for id, count in zip(ids, counts, strict=True)])
    inputs = lengths.sample(spec.input, seed, keys, "input")
    outputs = lengths.sample(spec.output, seed, keys, "output")
    systems, n_systems = _systems(spec, seed, ids)
    users = _texts(spec, seed, keys, inputs, "user")
    responses = _texts(spec, seed, keys, outputs, "response") if spec.history == "recorded" else None
    if spec.prompt == "text":
        _fit(tokenizers.load(spec.tokenizer), systems, counts, (users, inputs), (responses, outputs))
    n_in, n_out, think = inputs.tolist(), outputs.tolist(), _think(spec, seed, keys).tolist()

    def turn(at: int) -> Turn:
        added = [_message("user", users[at])]
        if responses is None:
            return Turn(added, n_in[at], n_out[at], think[at])
        return Turn(added, n_in[at], n_out[at], think[at], responses[at - 1], n_out[at - 1])

    made = []
    starts = accumulate(counts[:-1], initial=0)
    for id, system, n_system, start, count in zip(ids, systems, n_systems, starts, counts, strict=True):
        first = [_message("system", system)] if system else []
        first.append(_message("user", users[start]))
        later = tuple(map(turn, range(start + 1, start + count)))
        made.append(Request(id, first, n_system + n_in[start], n_out[start], later=later, n_system=n_system))
    return made


def has_sessions(spec: Conversation) -> bool:
    return True


def turns(spec: Conversation, seed: int, ids: Sequence[int]) -> list[int]:
    """How many turns each of the conversations has."""
    numbers: list[int] = np.clip(lengths.sample(spec.turns, seed, _numbers(ids), "turns"), 1, _MOST_TURNS).tolist()
    return numbers


def distinct(spec: Conversation) -> None:
    """None: every id has its own conversation."""


def content(spec: Conversation) -> bytes:
    """The corpus."""
    return tokenizers.prose().encode()


# --- the parts of conversations --------------------------------------------------------------------------------------


def _message(role: str, content: str) -> dict[str, object]:
    return {"role": role, "content": content}


def _numbers(ids: Sequence[int]) -> Keys:
    return np.array(ids, dtype=np.uint64)


def _keys(id: int, count: int) -> Keys:
    """The keys of a conversation's turns."""
    return np.uint64(id * _MOST_TURNS) + np.arange(count, dtype=np.uint64)


def _texts(spec: Conversation, seed: int, keys: Keys, tokens: NDArray[np.int64], purpose: str) -> list[str]:
    """One text for each key. In the form of one text, the first user's text starts it unless there is a system prompt."""
    made = [""] * len(keys)
    starts = (keys % np.uint64(_MOST_TURNS) == 0) & (purpose == "user") & (not _has_system(spec))
    continues = ~starts if spec.prompt == "text" else np.zeros(len(keys), np.bool_)
    for is_continued in (False, True):
        own = np.flatnonzero(continues == is_continued)
        if len(own):
            for at, each in zip(
                own.tolist(), _generate(spec, seed, keys[own], tokens[own], purpose, is_continued), strict=True
            ):
                made[at] = each
    return made


def _generate(
    spec: Conversation, seed: int, keys: Keys, tokens: NDArray[np.int64], purpose: str, continues: bool
) -> list[str]:
    tokenizer, salt = tokenizers.load(spec.tokenizer), text.salt_of(spec.salt)
    return text.texts(tokenizer, tokens, seed, keys, salt=salt, purpose=purpose, continues=continues)


def _fit(
    tokenizer: Tokenizer,
    systems: list[str],
    counts: Sequence[int],
    users: tuple[list[str], NDArray[np.int64]],
    responses: tuple[list[str] | None, NDArray[np.int64]],
) -> None:
    """Fit each text, in its list, to all the text before it, as far as that is known: live responses are not.

    A text keeps its space, because a history would otherwise start it on a new line (wire/history.py).
    """
    if tokenizer.adds_up:
        return
    ends = list(accumulate(counts))
    indexes = [end - count for end, count in zip(ends, counts, strict=True)]
    before = list(systems)
    steps = cycle([users, responses]) if responses[0] else iter([users])
    for texts, sizes in steps:
        own = [n for n, index in enumerate(indexes) if index < ends[n]]
        if not own or texts is None:
            break
        continued = [n for n in own if before[n]]
        parts, wanted = [texts[indexes[n]] for n in continued], [int(sizes[indexes[n]]) for n in continued]
        fitted = text.fit(tokenizer, [before[n] for n in continued], parts, wanted, text.SPACES)
        for n, part in zip(continued, fitted, strict=True):
            texts[indexes[n]] = part
        for n in own:
            before[n] += texts[indexes[n]]
            indexes[n] += texts is responses[0]


def _has_system(spec: Conversation) -> bool:
    return bool(spec.system or spec.own_system)


def _systems(spec: Conversation, seed: int, ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """The system prompt of each conversation, empty if it has none, and its tokens."""
    made = _common_systems(spec, seed, ids)
    if not spec.own_system:
        return made, [spec.system] * len(ids)
    keys = _numbers(ids)
    tokens = lengths.sample(spec.own_system, seed, keys, "own system")
    own = _generate(spec, seed, keys, tokens, "own system", bool(spec.system))
    if spec.system:
        own = text.fit(tokenizers.load(spec.tokenizer), made, own, tokens)
    return [common + added for common, added in zip(made, own, strict=True)], (tokens + spec.system).tolist()


def _common_systems(spec: Conversation, seed: int, ids: Sequence[int]) -> list[str]:
    """The part of the system prompts that conversations share."""
    if not spec.system:
        return [""] * len(ids)
    groups = list(ids) if spec.share_system is False else [id % int(spec.share_system) for id in ids]
    used = np.unique(_numbers(groups))
    made = _generate(spec, seed, used, np.full(len(used), spec.system), "system", False)
    by_group = dict(zip(used.tolist(), made, strict=True))
    return [by_group[group] for group in groups]


def _think(spec: Conversation, seed: int, keys: Keys) -> NDArray[np.int64]:
    """Nanoseconds before each turn; those that vary are whole microseconds."""
    mean = spec.think * 1e6
    if spec.think_distribution == "constant" or not mean:
        return np.full(len(keys), round(spec.think * NS))
    varied: Length = (
        Exponential(mean) if spec.think_distribution == "exponential" else LogNormal(mean, spec.think_std * 1e6 or mean)
    )
    return lengths.sample(varied, seed, keys, "think") * _MICROSECOND
