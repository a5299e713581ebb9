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
    """What is said once it stays the same for a tenth of a second: Triton counts a request after it has answered it."""
    found, since = ask(), time.monotonic()
    while time.monotonic() < since + 0.1:
        if (latest := ask()) != found:
            found, since = latest, time.monotonic()
    return found
