"""The limit for responses that a client does not read, and the error when it is exceeded."""

from inferometer.serve.models.types import Refused

GIVEN_UP = 1 << 30
"""Bytes that a decoupled model may be ahead of its client; beyond that, the inference is stopped."""


def not_read() -> Refused:
    """Return a new error each time: an exception keeps the frames it passed through, and the data they hold."""
    return Refused("RESOURCE_EXHAUSTED", "the client does not read the responses as fast as the model produces them")
