"""Lengths by a number or a distribution: a pure function of (spec, seed, id, purpose)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.config.lengths import Length


def sample(spec: Length, seed: int, ids: Sequence[int] | NDArray[np.uint64], purpose: str) -> NDArray[np.int64]:
    """One length for each id."""
    if isinstance(spec, int):
        return np.full(len(ids), spec, dtype=np.int64)
    raise NotImplementedError(type(spec).__name__)
