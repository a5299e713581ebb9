"""Ctrl-C and SIGTERM during a run."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

_TOGETHER = 0.1
"""Seconds in which signals count as one: `timeout` sends its signal to the command and to the command's group."""


@contextlib.contextmanager
def stop_on_ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first and second Ctrl-C; the third raises KeyboardInterrupt. SIGTERM counts as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0
    last = -_TOGETHER

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count, last
        if time.monotonic() - last < _TOGETHER:
            return
        count, last = count + 1, time.monotonic()
        if count > 2:
            raise KeyboardInterrupt
        stop()

    with _handled(handle, signal.SIGINT, signal.SIGTERM):
        yield


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM between runs as Ctrl-C, so that what was measured is reported, and servers that were started are ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt, signal.SIGTERM):
        yield


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals in this way while the block runs."""
    earlier = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in earlier.items():
            if before is not None:  # None: it was not set from Python, and cannot be restored
                signal.signal(number, before)
