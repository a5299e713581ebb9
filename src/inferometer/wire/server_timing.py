"""The Server-Timing header (or gRPC trailer): what the server says a request's time went into.

`queue;dur=0.12, compute;dur=3.4`: milliseconds, by name. Other names are somebody else's and are passed over.
"""

from inferometer.types import ServerTiming

NAME = b"server-timing"


def parse(value: bytes) -> ServerTiming | None:
    """What it says of queue and compute; None where it says neither."""
    found = {b"queue": -1, b"compute": -1}
    for entry in value.split(b","):
        name, *parameters = (part.strip() for part in entry.split(b";"))
        for parameter in parameters:
            key, _, duration = parameter.partition(b"=")
            if key.strip().lower() == b"dur" and name.lower() in found:
                found[name.lower()] = _nanoseconds(duration.strip().strip(b'"'))
    return ServerTiming(found[b"queue"], found[b"compute"]) if max(found.values()) >= 0 else None


def _nanoseconds(milliseconds: bytes) -> int:
    try:
        value = float(milliseconds)
    except ValueError:
        return -1
    return round(value * 1e6) if 0 <= value < 1e12 else -1
