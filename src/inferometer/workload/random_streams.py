"""Chance that is a function: the same number for the same (seed, id, purpose), in any order and in any process.

It is splitmix64's output function over a counter, the same on every machine and in every release of numpy.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint64]


def draw(seed: int, ids: Ids, purpose: str) -> Ids:
    """64 random bits for each id."""
    start = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    z = np.uint64(int.from_bytes(start[:8], "little")) + ids * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def shuffled(seed: int, n: int, purpose: str) -> NDArray[np.int64]:
    """0..n-1 in random order."""
    return np.argsort(draw(seed, np.arange(n, dtype=np.uint64), purpose), kind="stable").astype(np.int64)
