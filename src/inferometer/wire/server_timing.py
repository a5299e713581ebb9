"""The Server-Timing header (or gRPC trailer): how the server says a request's time was spent.

The format is `queue;dur=0.12, compute;dur=3.4, total;dur=3.7`: milliseconds by name. `total` is the time from receiving the request to
sending the response, so what is left of the client's time is the network. Other names are ignored.
"""

import re

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
        return _timing(_nanoseconds(queue), _nanoseconds(compute), _nanoseconds(total))
    durations = {b"queue": -1, b"compute": -1, b"total": -1}
    for entry in value.split(b","):
        name, *parameters = (part.strip() for part in entry.split(b";"))
        for parameter in parameters:
            key, _, duration = parameter.partition(b"=")
            if key.strip().lower() == b"dur" and name.lower() in durations:
                durations[name.lower()] = _nanoseconds(duration.strip().strip(b'"'))
    return _timing(*durations.values())


def _timing(queue: int, compute: int, total: int) -> ServerTiming | None:
    return ServerTiming(queue, compute, total) if max(queue, compute, total) >= 0 else None


def _nanoseconds(milliseconds: bytes) -> int:
    try:
        value = float(milliseconds)
    except ValueError:
        return -1
    return round(value * 1e6) if 0 <= value < 1e12 else -1
