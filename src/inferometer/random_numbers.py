"""Random numbers that are a pure function of (seed, counter, purpose).

They can be drawn in any order and in any process, and they are the same on every processor and with every release of
numpy. The generator is splitmix64's output function applied to a counter.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Counters = NDArray[np.uint64]


def random_bits(seed: int, counters: Counters, purpose: str) -> NDArray[np.uint64]:
    """64 random bits for each counter."""
    start = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    z = np.uint64(int.from_bytes(start[:8], "little")) + counters * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniforms(seed: int, counters: Counters, purpose: str) -> NDArray[np.float64]:
    """A number strictly between 0 and 1 for each counter, with 52 random bits."""
    return ((random_bits(seed, counters, purpose) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def shuffled(seed: int, n: int, purpose: str) -> NDArray[np.int64]:
    """The numbers 0..n-1 in random order."""
    return np.argsort(random_bits(seed, np.arange(n, dtype=np.uint64), purpose), kind="stable").astype(np.int64)
