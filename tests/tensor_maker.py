"""Random tensors for tests."""

from collections.abc import Sequence

import numpy as np

from inferometer.tensors import Tensor
from inferometer.workload import random_tensors


def random(name: str, datatype: str, shape: Sequence[int], generator: np.random.Generator) -> Tensor:
    """A random tensor; each call with the same generator gives another one."""
    return random_tensors.random(name, datatype, shape, int(generator.integers(1 << 62)), name)
