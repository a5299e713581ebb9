"""Embeddings of the simulator: vectors of length 1 that depend on nothing but the text."""

import base64
import hashlib
from collections.abc import Sequence

import numpy as np

from inferometer.serve.sim.frames import json_bytes


def body(model: str, texts: Sequence[str], dimensions: int, packed: bool, n_in: int) -> bytes:
    """The response's JSON: one vector per text, `packed` as base64 of 32-bit floats."""
    rows = [_row(index, text, dimensions, packed) for index, text in enumerate(texts)]
    usage = {"prompt_tokens": n_in, "total_tokens": n_in}
    return json_bytes({"object": "list", "data": rows, "model": model, "usage": usage})


def _row(index: int, text: str, dimensions: int, packed: bool) -> dict[str, object]:
    noise = hashlib.shake_256(text.encode()).digest(dimensions)
    vector = np.frombuffer(noise, np.uint8).astype(np.float32) - np.float32(127.5)
    vector /= np.linalg.norm(vector)
    value = base64.b64encode(vector.tobytes()).decode() if packed else vector.tolist()
    return {"object": "embedding", "index": index, "embedding": value}
