"""The Server-Timing header (or gRPC trailer): how the server says a request's time was spent.

The format is `queue;dur=0.12, compute;dur=3.4`: milliseconds by name. Names other than queue and compute are ignored.
"""

from inferometer.types import ServerTiming

NAME = b"server-timing"


def parse(value: bytes) -> ServerTiming | None:
    """Read the queue and compute durations; return None if the value has neither."""
    durations = {b"queue": -1, b"compute": -1}
    for entry in value.split(b","):
        name, *parameters = (part.strip() for part in entry.split(b";"))
        for parameter in parameters:
            key, _, duration = parameter.partition(b"=")
            if key.strip().lower() == b"dur" and name.lower() in durations:
                durations[name.lower()] = _nanoseconds(duration.strip().strip(b'"'))
    return ServerTiming(durations[b"queue"], durations[b"compute"]) if max(durations.values()) >= 0 else None


def _nanoseconds(milliseconds: bytes) -> int:
    try:
        value = float(milliseconds)
    except ValueError:
        return -1
    return round(value * 1e6) if 0 <= value < 1e12 else -1
