"""Wait for a condition rather than for some time."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 30

T = TypeVar("T")


def until(condition: Callable[[], bool], what: str = "what the test waits for", seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)


def still(read: Callable[[], T]) -> T:
    """Return the value once it was the same three times in a row and for 100 ms: Triton counts a request after its response."""
    value, since, alike = read(), time.monotonic(), 1
    while alike < 3 or time.monotonic() < since + 0.1:
        alike += 1
        if (latest := read()) != value:
            value, since, alike = latest, time.monotonic(), 1
    return value
