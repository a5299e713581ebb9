"""Makes composed texts have exactly the requested number of tokens, whatever the tokenizer does at seams and word starts.

The tokens of a text are a sum of what its parts have, which is wrong if a token spans two parts. So texts are counted as a whole, in
one batch. Those of the wrong length are composed again with the difference in mind; the few that are still wrong are
composed too long, and cut.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError
from inferometer.random_numbers import random_bits
from inferometer.workload import material
from inferometer.workload.material import BEFORE
from inferometer.workload.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CORRECTIONS = 3
"""How often a text of the wrong length is composed again before it is cut."""

Around = Callable[[str], str]
"""The prompt that the server makes of a text, whose tokens count (a chat template)."""


class Compose(Protocol):
    def __call__(
        self, lengths: NDArray[np.int64], keys: NDArray[np.uint64], excess: NDArray[np.int64] | int = 0
    ) -> list[str]:
        """Compose texts whose parts have these numbers of tokens in total, less what earlier texts had in excess."""
        ...


def exactly(
    tokenizer: Tokenizer,
    compose: Compose,
    wanted: NDArray[np.int64],
    keys: NDArray[np.uint64],
    continues: bool = False,
    around: Around | None = None,
) -> list[str]:
    """Compose texts with exactly these numbers of tokens, or that add them if they continue another text."""
    alone = tokenizer.count(BEFORE) if continues else 0
    if around is not None:
        alone = tokenizer.count(around(BEFORE)) - tokenizer.count(BEFORE)
        _check_room(int(wanted.min(initial=1 << 62)), alone)
    inner = wanted - alone if around is not None else wanted
    made = compose(inner, keys)
    wrong, excess = np.arange(len(wanted)), np.zeros(len(wanted), np.int64)
    for attempt in range(_CORRECTIONS + 1):
        off = counted(tokenizer, [made[i] for i in wrong.tolist()], continues, around) - wanted[wrong]
        excess[wrong] += off
        wrong = wrong[off != 0]
        if not len(wrong) or attempt == _CORRECTIONS:
            break
        again = compose(inner[wrong], keys[wrong], excess[wrong])
        for i, text in zip(wrong.tolist(), again, strict=True):
            made[i] = text
    for i in wrong.tolist():
        made[i] = _cut(tokenizer, compose, int(wanted[i]), keys[i : i + 1], continues, around)
    return made


def counted(
    tokenizer: Tokenizer, made: list[str], continues: bool = False, around: Around | None = None
) -> NDArray[np.int64]:
    """The tokens that each text has or, if it continues another, adds."""
    if around is not None:
        return np.array(tokenizer.count_batch(map(around, made)), np.int64)
    if not continues:
        return np.array(tokenizer.count_batch(made), np.int64)
    counts = tokenizer.count_batch(BEFORE + text for text in made)
    return np.array(counts, np.int64) - tokenizer.count(BEFORE)


def _check_room(shortest: int, overhead: int) -> None:
    if shortest <= overhead:
        raise UserError(
            f"a prompt of {shortest} token{'s' * (shortest > 1)} has no room for text: the chat template adds {overhead}",
            f"use {{data.input}} of more than {overhead}, or {{data.chat_template}} count",
            key="data.input",
        )


# --- cutting ---------------------------------------------------------------------------------------------------------


def _cut(
    tokenizer: Tokenizer,
    compose: Compose,
    n: int,
    key: NDArray[np.uint64],
    continues: bool,
    around: Around | None,
) -> str:
    """Compose the same text with more tokens and cut it near the end of its nth, with another ending if necessary."""
    before = BEFORE if continues else ""
    alone = tokenizer.count(before) if before else 0
    inner = n
    if around is not None:
        inner = max(1, n - tokenizer.count(around(BEFORE)) + tokenizer.count(BEFORE))
    random = int(random_bits(0, key, "ending")[0])
    for longer in (2 * inner + 16, 8 * inner + 64):
        text = before + compose(np.array([longer]), key)[0]
        ends = ends_up_to(tokenizer, text, inner + alone)
        if ends and around is not None:  # the template may join tokens with those of the text
            off = int(counted(tokenizer, [text[: ends[0]].rstrip()], around=around)[0]) - n
            ends = ends_up_to(tokenizer, text, max(1, inner - off))
        if not ends:
            continue
        window = range(max(len(before), ends[0] - 12), ends[0] + 12)
        nearest = [*ends, *sorted(window, key=lambda cut: abs(cut - ends[0]))]
        endings = _endings(tokenizer, random)
        for cuts, ends_with in ((nearest[:1], [""]), (nearest[1:], [""]), *(([cut], endings) for cut in nearest)):
            tries = [(text[:cut].rstrip() + ending).lstrip()[len(before) :] for cut in cuts for ending in ends_with]
            counts: list[int] = counted(tokenizer, tries, continues, around).tolist()
            if n in counts:
                return tries[counts.index(n)]
    raise impossible(tokenizer, n)


def ends_up_to(tokenizer: Tokenizer, text: str, n: int) -> list[int]:
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


def _endings(tokenizer: Tokenizer, random: int) -> list[str]:
    """Short endings that add different numbers of tokens to a text."""
    singles = material.measured(tokenizer).singles
    words = [f" {singles[(random + j) % len(singles)]}" for j in range(min(6, len(singles)))]
    start = random % len(LETTERS)
    letters = LETTERS[start:] + LETTERS[:start]
    return [*words, *letters, ".", letters[:2], letters[:3], letters[:4]]


def impossible(tokenizer: Tokenizer, n: int) -> UserError:
    return UserError(
        f"tokenizer {tokenizer.name} cannot make a prompt of exactly {n} token{'s' * (n > 1)} from its corpus",
        "change data.input or data.tokenizer, or give your own prompts with data.type: jsonl",
    )


# --- texts that continue others --------------------------------------------------------------------------------------

_VARIANTS = 128
_JOINTS = (" ", "\n", ". ", ", ", "; ", ": ", " - ", "/", "'", *LETTERS)
"""What a part may start with if the tokenizer's tokens span words."""
SPACES = (" ", "\n", "\n\n", "  ", " - ", " / ", "\t", " '")
"""The same for texts that must start with a space."""


def fit(
    tokenizer: Tokenizer,
    before: Sequence[str],
    parts: Sequence[str],
    lengths: Sequence[int] | NDArray[np.int64],
    joints: Sequence[str] = _JOINTS,
) -> list[str]:
    """Return texts like `parts` that each add exactly this many tokens to the text before it, and leave its tokens as they are.

    `parts` are texts made with `continues=True`. With a tokenizer that `adds_up` they fit already. Otherwise those that do not
    get another start and another ending. The result depends on the text before, the part and its length alone: prompts
    that share what comes before also share the tokens. `joints` are what a part may start with.
    """
    if tokenizer.adds_up:
        return list(parts)
    joined = tokenizer.encode_batch([start + part for start, part in zip(before, parts, strict=True)])
    starts = tokenizer.encode_batch(before)
    rows = zip(before, starts, parts, joined, np.asarray(lengths).tolist(), strict=True)
    return [
        part if _fits(ids, whole, length) else _fitted(tokenizer, start, ids, part, length, joints)
        for start, ids, part, whole, length in rows
    ]


def _fits(start: list[int], whole: list[int], added: int) -> bool:
    return len(whole) == len(start) + added and whole[: len(start)] == start


def _fitted(tokenizer: Tokenizer, before: str, start: list[int], part: str, length: int, joints: Sequence[str]) -> str:
    """Change how the part starts until no token spans the seam, and cut it after its last token."""
    followers = material.measured(tokenizer).followers
    words = part.split(" ")[1:]  # a continuing text starts with a space
    random = int.from_bytes(part.encode()[:8], "little") + length
    more = [followers[(random + j) % len(followers)] for j in range(length)]
    for variant in range(_VARIANTS):
        first = words[0] if words and variant == 0 else followers[(random + variant * 7) % len(followers)]
        joint = joints[variant % len(joints)]
        text: str = before + joint + " ".join([first, *words[1:], *more])
        ends = [end for end in ends_up_to(tokenizer, text, len(start) + length) if end > len(before)]
        if not ends or tokenizer.encode(text[: ends[0]])[: len(start)] != start:
            continue
        # A token may end with the space before the next word, which a later part would join: other endings then reach the length.
        for cuts, ends_with in ((ends[:1], [""]), (ends, _endings(tokenizer, random))):
            stems = [text[:end].rstrip() for end in cuts]
            stems = [stem if len(stem) > len(before) else before + joint for stem in stems]  # a part keeps its start
            tries = [stem + ending for stem in stems for ending in ends_with]
            for made, ids in zip(tries, tokenizer.encode_batch(tries), strict=True):
                if len(made) > len(before) and _fits(start, ids, length):
                    return made[len(before) :]
    raise UserError(
        f"tokenizer {tokenizer.name} cannot continue a prompt by exactly {length} token{'s' * (length > 1)}: its tokens span words",
        "use another data.tokenizer, or leave it out",
        key="data.tokenizer",
    )
