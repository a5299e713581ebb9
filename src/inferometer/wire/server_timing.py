"""The Server-Timing header (or gRPC trailer): how the server says a request's time was spent.

The format is `queue;dur=0.12, compute;dur=3.4, total;dur=3.7`: milliseconds by name. `total` is the time from receiving the request to
sending the response, so what is left of the client's time is the network. Other names are ignored.
"""

import re
from typing import Any

from inferometer.types import ServerTiming

NAME = b"server-timing"
FORMAT = b"queue;dur=%.6f, compute;dur=%.6f, total;dur=%.6f"
"""What the reference server sends."""
_OURS = re.compile(rb",?queue;dur=([\d.]{1,16}), compute;dur=([\d.]{1,16})(?:, total;dur=([\d.]{1,16}))?").fullmatch
"""The usual form, which is read in a quarter of the time."""


def parse(value: bytes) -> ServerTiming | None:
    """Read the durations; return None if the value has none of them."""
    if (usual := _OURS(value)) is not None:
        queue, compute, total = usual.groups(b"-")
        return timing(nanoseconds(queue), nanoseconds(compute), nanoseconds(total))
    durations = {b"queue": -1, b"compute": -1, b"total": -1}
    for entry in value.split(b","):
        name, *parameters = (part.strip() for part in entry.split(b";"))
        for parameter in parameters:
            key, _, duration = parameter.partition(b"=")
            if key.strip().lower() == b"dur" and name.lower() in durations:
                durations[name.lower()] = nanoseconds(duration.strip().strip(b'"'))
    return timing(*durations.values())


def timing(queue: int, compute: int, total: int) -> ServerTiming | None:
    """None if all of them are -1."""
    return ServerTiming(queue, compute, total) if max(queue, compute, total) >= 0 else None


def nanoseconds(number: Any, unit: float = 1e6) -> int:
    """A duration in units of so many nanoseconds; -1 if it is none."""
    try:
        value = float(number)
    except (OverflowError, TypeError, ValueError):
        return -1
    return round(value * unit) if 0 <= value * unit < 1e18 else -1
