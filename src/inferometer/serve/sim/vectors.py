"""Embeddings of the simulator: vectors of length 1 that depend on nothing but the input."""

import hashlib

import numpy as np

DIMENSIONS = 384
"""Length of a vector if the request sets none."""


def vector(part: str | list[int], dimensions: int | None) -> np.ndarray:
    """Return the vector of a text or of token ids."""
    text = part if isinstance(part, str) else " ".join(map(str, part))
    noise = hashlib.shake_256(text.encode()).digest(dimensions or DIMENSIONS)
    made = np.frombuffer(noise, np.uint8).astype(np.float32) - np.float32(127.5)
    return made / np.linalg.norm(made)
