"""When work leaves the event loop, and how far models may be ahead of their clients.

Work on more than `LARGE` bytes goes to a thread, everything else is done at once. Work in this sense is what the server
itself does to a request's bytes: parsing and writing JSON, compression, decoding images, walking long lists of strings,
copying from and to shared memory. (Models compute in threads of their own.)
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from inferometer.serve.models.types import Refused
from inferometer.serve.threads import Threads

T = TypeVar("T")

LARGE = 64 * 1024
"""Bytes from which a thread costs less than blocking others: 1 to 3 ms of work."""
COPIED = 16
"""As many bytes are copied in the time in which one is parsed: work that only copies counts its bytes divided by this."""
STRING = 16
"""Bytes that each element of a list of strings counts, because each is looked at by itself."""
_THREADS = 2
"""Python computes in one thread at a time, but others can copy, compress and decompress meanwhile."""
UNREAD = 1 << 30
"""Bytes that a decoupled model may be ahead of its client; beyond that, the inference is stopped."""


class Offload:
    """Runs work in the loop or in a thread, depending on its size."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = Threads(loop, _THREADS, "offload")

    def run(self, size: int, work: Callable[[], T], then: Callable[[T | None, BaseException | None], None]) -> None:
        """Call `then` in the loop with the result of `work` or with its exception: before this returns if at most
        `LARGE` bytes are concerned, later otherwise. `then` must check whether its request is still wanted."""
        if size > LARGE:
            with suppress(RuntimeError):  # the system cannot create a thread: do the work here
                self._threads.do(work, then)
                return
        try:
            made = work()
        except Exception as error:
            then(None, error)
        else:
            then(made, None)

    def close(self) -> None:
        self._threads.close()


def not_read() -> Refused:
    """Return a new error each time: an exception keeps the frames it passed through, and the data they hold."""
    return Refused("RESOURCE_EXHAUSTED", "the client does not read the responses as fast as the model produces them")
