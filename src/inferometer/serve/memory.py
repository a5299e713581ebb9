"""Memory for what a client announced and has not sent."""

import numpy as np


def untouched(size: int) -> memoryview:
    """So many bytes, with whatever is in them: they are for being filled. The system gives large ones page by page as they
    are, so that an announcement alone costs neither memory nor time."""
    return np.empty(size, np.uint8).data
