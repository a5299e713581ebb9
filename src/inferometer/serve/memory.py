"""Memory allocation of the server: a single heap, and buffers for announced request bodies."""

import ctypes
import sys

import numpy as np

_M_ARENA_MAX = -8  # glibc's malloc.h


def keep_one_heap() -> None:
    """Use one glibc heap for all threads; call this before there are any. By default, each thread gets its own heap,
    and memory that one thread allocates and another frees fragments all of them: under mixed load, memory grew
    without bound. Without glibc's malloc, this does nothing.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


def untouched(size: int) -> memoryview:
    """Return `size` uninitialised bytes. The system provides large buffers page by page as they are written, so that an
    announced body alone costs neither memory nor time."""
    return np.empty(size, np.uint8).data
