"""Bounds the memory that a JSON body takes when it is parsed: an empty list is 3 bytes of text, and 64 in memory."""

import numpy as np

from inferometer.serve.models.types import Refused

MOST_VALUES = 8_000_000
_BLOCK = 1 << 20


def check_values(data: bytes | memoryview) -> None:
    """Raise Refused if the JSON may have more than MOST_VALUES values: commas and brackets count, even within texts."""
    if len(data) <= MOST_VALUES:
        return
    view, count = np.frombuffer(data, np.uint8), 0
    for at in range(0, len(view), _BLOCK):
        block = view[at : at + _BLOCK]
        count += sum(int(np.count_nonzero(block == byte)) for byte in b",[{")
    if count > MOST_VALUES:
        why = f"the JSON has more than {MOST_VALUES} values: send fewer, or tensors as binary data"
        raise Refused("RESOURCE_EXHAUSTED", why, status=413)
