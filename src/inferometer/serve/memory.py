"""The server's memory: one heap, and room for what a client announced and has not sent."""

import ctypes
import sys

import numpy as np

_M_ARENA_MAX = -8  # glibc's malloc.h


def keep_one_heap() -> None:
    """Before there are threads. glibc would give each a heap of its own, and what one thread takes and another gives back
    leaves holes in all of them: under mixed load memory rose without an end in sight. It changes nothing where there is no
    such malloc."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


def untouched(size: int) -> memoryview:
    """So many bytes, with whatever is in them: they are for being filled. The system gives large ones page by page as they
    are, so that an announcement alone costs neither memory nor time."""
    return np.empty(size, np.uint8).data
