"""Waiting for what is on its way, rather than for a while."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 30

T = TypeVar("T")


def until(condition: Callable[[], bool], what: str = "what the test waits for", seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"in {seconds:g} s it never came to this: {what}"
        time.sleep(0.005)


def still(ask: Callable[[], T]) -> T:
    """What is said three times in a row and for a tenth of a second: Triton counts a request after it has answered it."""
    found, since, alike = ask(), time.monotonic(), 1
    while alike < 3 or time.monotonic() < since + 0.1:
        alike += 1
        if (latest := ask()) != found:
            found, since, alike = latest, time.monotonic(), 1
    return found
