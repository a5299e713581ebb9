"""Circular block bootstrap: how uncertain a percentile of one run is, from that run alone.

Requests that follow each other resemble each other, so single requests must not be resampled. The window is bent into a
circle and cut at random places: each replicate joins BLOCKS stretches of time, every one a twentieth of the window, and takes
the percentile of the values in them. Within a stretch, the values resemble each other as they did in the run.

Stretches start at one of CELLS instants, and the values of a cell are counted by their rank in the run. So a replicate is a sum
of counts, and its cost does not depend on the number of requests. Ranks are exact for up to _RANKS values; of more values, those
near the tail are kept apart most finely.
"""

import math

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.blocks import BLOCKS

REPLICATES = 400
CELLS = 10 * BLOCKS
_RANKS = 1024
_TAIL = 0.05
"""The share of the values, the largest, that get half of the ranks."""


def percentile_replicates(
    values: NDArray[np.float64], at: NDArray[np.int64], thousandths: tuple[int, ...], seed: int = 0
) -> dict[int, NDArray[np.float64]]:
    """Replicates of each percentile of `values`, which were measured at the instants `at`; a value may be +inf."""
    order = np.argsort(values, kind="stable")
    levels = _levels(len(values))
    level = np.empty(len(values), np.intp)
    level[order] = np.searchsorted(levels, np.arange(len(values)), side="left")
    counts = _by_cell(at, level, len(levels))
    totals = _resample(counts, seed)
    below = np.cumsum(totals, axis=1)
    representative = values[order][levels]
    found = {}
    for p in thousandths:
        rank = np.maximum(np.ceil(below[:, -1] * (p / 1000)), 1)
        chosen = (below < rank[:, None]).sum(1)
        found[p] = representative[np.minimum(chosen, len(levels) - 1)]
    return found


def _levels(count: int) -> NDArray[np.intp]:
    """The last index of each group of neighbouring ranks, ascending."""
    if count <= _RANKS:
        return np.arange(count)
    tail = count - max(math.ceil(count * _TAIL), 1)
    coarse = np.linspace(0, tail - 1, _RANKS // 2)
    fine = np.linspace(tail, count - 1, _RANKS // 2)
    return np.unique(np.rint(np.concatenate([coarse, fine])).astype(np.intp))


def _by_cell(at: NDArray[np.int64], level: NDArray[np.intp], levels: int) -> NDArray[np.int64]:
    """How many values of each level lie in each cell of time."""
    start = int(at.min())
    length = max(int(at.max()) - start + 1, 1)
    cell = ((at - start).astype(np.float64) * (CELLS / length)).astype(np.intp)
    flat = np.bincount(np.minimum(cell, CELLS - 1) * levels + level, minlength=CELLS * levels)
    return flat.reshape(CELLS, levels)


def _resample(counts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """For each replicate, the sum of the counts in BLOCKS stretches of time."""
    rng = np.random.default_rng(seed)
    length = CELLS // BLOCKS
    around = np.concatenate([counts, counts[:length]])
    before = np.concatenate([np.zeros((1, counts.shape[1]), np.int64), np.cumsum(around, axis=0)])
    stretches = before[length : length + CELLS] - before[:CELLS]
    starts = rng.integers(0, CELLS, (REPLICATES, BLOCKS))
    weights = np.zeros((REPLICATES, CELLS))
    np.add.at(weights, (np.arange(REPLICATES)[:, None], starts), 1)
    totals: NDArray[np.int64] = np.rint(weights @ stretches.astype(np.float64)).astype(np.int64)
    return totals
