"""How many requests per second a server served during a probe, by what it did for all of them: complete ones, and those in progress."""

import math

import numpy as np
from numpy.typing import NDArray

from inferometer.records import MISSING, Columns
from inferometer.units import NS

_SETTLED = 0.4
"""The part of a probe from which on its rate counts: before, its first responses are in progress."""
_BLOCKS, _FEW = 4, 30
"""Stretches of time whose variation shows how certain a rate is; and responses that are too few to be counted beside their tokens."""


class Lengths:
    """How many tokens responses have on average, by all requests so far.

    The mean of the complete responses alone would be that of the short ones, which complete first. So the tokens that all requests want
    count, and what a server generates of them.
    """

    def __init__(self) -> None:
        self._requests = self._wanted = self._complete = self._made = 0.0

    def add(self, rows: Columns) -> None:
        wanted, made = rows["n_want"], _made(rows)
        self._requests += len(rows)
        self._wanted += float(np.maximum(wanted, 1).sum())
        complete = (rows["failure"] == 0) & (made > 0)
        self._complete += float(np.maximum(wanted, 1)[complete].sum())
        self._made += float(made[complete].sum())

    @property
    def tokens(self) -> float | None:
        """Tokens in a response; None if responses have none."""
        return self._wanted / self._requests * self._made / self._complete if self._made else None


def _made(rows: Columns) -> NDArray[np.int32]:
    """Tokens streamed so far; chunks, where the number of tokens in each is not known."""
    return np.where(rows["streamed_tokens"] > 0, rows["streamed_tokens"], rows["chunk_count"])


def served_rate(rows: Columns, tokens: float | None, seconds: float) -> tuple[float | None, float]:
    """Requests per second that the server served in the later part of a probe of this length, and the relative error of that.

    By tokens, if responses have them (`tokens` is how many on average), and by responses. A response that crosses an edge counts with the
    part of it that is inside, and one in progress with its tokens so far: long responses count before the first of them is complete. Where
    both are known they differ as long as the mix of long and short responses in progress is not yet the usual one.
    """
    begin, end = round(_SETTLED * seconds * NS), round(seconds * NS)
    counts = [_work(rows, rows["sent"], rows["done"], rows["failure"] == 0, np.ones(len(rows)), begin, end)]
    made = _made(rows)
    if tokens and bool((made > 0).any()):
        by_tokens = _work(rows, rows["first_token"], rows["last_token"], made > 0, made / tokens, begin, end)
        counts = [by_tokens] if counts[0].sum() < _FEW else [by_tokens, *counts]
    totals = [float(one.sum()) for one in counts]
    if min(totals) <= 0:
        return None, 1.0
    mean = math.sqrt(math.prod(totals)) if len(totals) == 2 else totals[0]
    blocks = counts[0]
    error = float(blocks.std(ddof=1)) / math.sqrt(len(blocks)) / float(blocks.mean())
    apart = abs(math.log(totals[0] / totals[1])) / 2 if len(totals) == 2 else 0.0
    return mean * NS / (end - begin), max(error, apart)


def _work(
    rows: Columns,
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    known: NDArray[np.bool_],
    size: NDArray[np.float64],
    begin: int,
    end: int,
) -> NDArray[np.float64]:
    """How much work was done in each of _BLOCKS stretches of time, if each of the `known` rows was worked on from `first` to `last`."""
    known = known & (first != MISSING) & (last != MISSING)
    first, last, size = first[known], last[known], size[known]
    length = np.maximum(last - first, 1)
    edges = np.linspace(begin, end, _BLOCKS + 1)
    done = [float((size * np.clip((edge - first) / length, 0, 1)).sum()) for edge in edges]
    return np.diff(done)
