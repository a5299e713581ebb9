"""Prompts from hash ids: every id stands for a block of tokens, so that prompts with the same first ids start with the same text.

The text of a block depends on its id, the seed and the salt alone. A block at the start of a prompt is written as the start of a
text, and others as a continuation; in a trace, an id is always one or the other, because it is a hash of all the tokens before it.
The last block of a prompt is cut to the tokens that are left.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.workload import text
from inferometer.workload import tokenizer as tokenizers

_KEPT_TOKENS = 8 << 20
"""Blocks of this many tokens are kept, about 40 MB of text: prefixes are reused soon, or by many rows."""
_AT_ONCE = 1 << 20
"""Tokens of prompts that are made together."""

_Key = tuple[int, int, bool]
"""Hash id, tokens, and whether it starts a prompt."""


class Row(NamedTuple):
    """What a prompt is made from."""

    ids: NDArray[np.uint64]
    tokens: int
    key: int
    """A key of its own, for tokens that no id covers."""
    continues: bool
    """Whether the prompt continues the text of the turns before."""


def prompts(
    tokenizer: str | None,
    seed: int,
    salt: str,
    block: int,
    rows: Sequence[Row],
) -> list[str]:
    """One prompt for each row."""
    blocks = _block_texts(tokenizer, seed, salt, block)
    made: list[str] = []
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += row.tokens
        if size >= _AT_ONCE:
            made += blocks.prompts(group)
            group, size = [], 0
    return made + blocks.prompts(group)


@lru_cache(maxsize=2)
def _block_texts(tokenizer: str | None, seed: int, salt: str, block: int) -> "_BlockTexts":
    return _BlockTexts(tokenizer, seed, salt, block)


class _BlockTexts:
    """The texts of blocks, of which the latest are kept."""

    def __init__(self, tokenizer: str | None, seed: int, salt: str, block: int) -> None:
        self._tokenizer = tokenizers.load(tokenizer)
        self._seed = seed
        self._salt = salt
        self._block = block
        self._texts: OrderedDict[_Key, str] = OrderedDict()
        self._seams: OrderedDict[tuple[str, str], str] = OrderedDict()
        """What follows a text in place of a part that does not fit there."""

    def prompts(self, rows: Sequence[Row]) -> list[str]:
        keys = [self._keys(row) for row in rows]
        self._make(dict.fromkeys(key for row in keys for key in row))
        rests = self._rests(rows)
        parts = [[self._text(key) for key in row] + [rest] * bool(rest) for row, rest in zip(keys, rests, strict=True)]
        if not self._tokenizer.adds_up:
            sizes = [self._sizes(own, row.tokens) for own, row in zip(keys, rows, strict=True)]
            parts = [self._fitted(each, own) for each, own in zip(parts, sizes, strict=True)]
        made = ["".join(each) for each in parts]
        while len(self._texts) * self._block > _KEPT_TOKENS:
            self._texts.popitem(last=False)
        return made

    def _sizes(self, keys: list[_Key], tokens: int) -> list[int]:
        """Tokens of each part of a prompt."""
        return [*(key[1] for key in keys), tokens - len(keys) * self._block]

    def _fitted(self, parts: list[str], sizes: list[int]) -> list[str]:
        """The parts of a prompt, each of which adds its number of tokens to the part before it, for tokenizers whose tokens span
        words. What is farther away does not matter, so that a block after the same blocks is always the same."""
        fitted = parts[:1]
        for part, size in zip(parts[1:], sizes[1:], strict=False):
            seam = (fitted[-1], part)
            if seam not in self._seams:
                self._seams[seam] = text.fit(self._tokenizer, [fitted[-1]], [part], [size])[0]
            fitted.append(self._seams[seam])
        while len(self._seams) * self._block > _KEPT_TOKENS:
            self._seams.popitem(last=False)
        return fitted

    def _keys(self, row: Row) -> list[_Key]:
        sizes = (min(self._block, row.tokens - start) for start in range(0, len(row.ids) * self._block, self._block))
        numbered = enumerate(zip(row.ids.tolist(), sizes, strict=True))
        return [(id, size, n == 0 and not row.continues) for n, (id, size) in numbered]

    def _text(self, key: _Key) -> str:
        self._texts.move_to_end(key)
        return self._texts[key]

    def _make(self, wanted: dict[_Key, None]) -> None:
        missing = [key for key in wanted if key not in self._texts]
        for starts in (True, False):
            keys = [key for key in missing if key[2] is starts]
            if keys:
                ids, sizes = np.array([key[0] for key in keys], np.uint64), [key[1] for key in keys]
                self._texts.update(zip(keys, self._generate(ids, sizes, "block", not starts), strict=True))

    def _rests(self, rows: Sequence[Row]) -> list[str]:
        """The tokens after the last block, which no other prompt has."""
        sizes = np.array([max(row.tokens - len(row.ids) * self._block, 0) for row in rows], np.int64)
        own = np.array([row.key for row in rows], np.uint64)
        follows = np.array([len(row.ids) > 0 or row.continues for row in rows], bool)
        rests = [""] * len(rows)
        for continues in (True, False):
            chosen = np.flatnonzero((sizes > 0) & (follows == continues))
            if len(chosen):
                made = self._generate(own[chosen], sizes[chosen], "trace", continues)
                for index, rest in zip(chosen.tolist(), made, strict=True):
                    rests[index] = rest
        return rests

    def _generate(
        self, keys: NDArray[np.uint64], sizes: Sequence[int] | NDArray[np.int64], purpose: str, continues: bool
    ) -> list[str]:
        return text.texts(
            self._tokenizer, sizes, self._seed, keys, salt=self._salt, purpose=purpose, continues=continues
        )
