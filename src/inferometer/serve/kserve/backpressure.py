"""Answers that a client asked for and does not read: how much of them is kept, and what it is told then."""

from inferometer.serve.models.types import Refused

GIVEN_UP = 1 << 30
"""Bytes that a decoupled model may be ahead of its client; then it is stopped."""


def not_read() -> Refused:
    """Made anew each time: an exception keeps the frames that it went through, and what they hold."""
    return Refused("RESOURCE_EXHAUSTED", "the client does not read the responses as fast as the model produces them")
