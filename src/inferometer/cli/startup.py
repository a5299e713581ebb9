"""What makes a command that measures, or reads stored runs, start faster. Call it before anything that imports numpy."""

import gc
import os
import sys

from inferometer.processors import ONE_BLAS_THREAD

_MANY_OBJECTS = 100_000
"""Objects after which Python looks for garbage. Imports alone make this many, and nearly all of them stay."""


def prepare() -> None:
    gc.set_threshold(_MANY_OBJECTS)
    if "numpy" not in sys.modules and not ONE_BLAS_THREAD.keys() & os.environ.keys():
        os.environ.update(ONE_BLAS_THREAD)
        try:
            import numpy  # noqa: F401, PLC0415
        finally:
            for name in ONE_BLAS_THREAD:  # programs that this process starts do not inherit it
                del os.environ[name]
