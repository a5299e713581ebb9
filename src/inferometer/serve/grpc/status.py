"""The status of a call: codes, messages of one line, and the trailers that carry both."""

from urllib.parse import quote

from inferometer.serve.models.types import Refused
from inferometer.wire.http2 import hpack

CODES = {
    "OK": 0, "CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6, "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9, "ABORTED": 10,
    "OUT_OF_RANGE": 11, "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "DATA_LOSS": 15, "UNAUTHENTICATED": 16,
}  # fmt: skip
_MAX_DETAILS = 1000
"""Maximum length of a status message: it is sent in the trailers, which clients limit to a few kB."""
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

OK = hpack.encode([(b"grpc-status", b"0")])
_TIMING = b"\x00\x0dserver-timing%c%b"  # a literal field without indexing; its value is shorter than 127 bytes


def timed(queue_ns: int, compute_ns: int, total_ns: int) -> bytes:
    """Return the trailers of a successful call, with the server's own times."""
    value = b"queue;dur=%.6f, compute;dur=%.6f, total;dur=%.6f" % (queue_ns / 1e6, compute_ns / 1e6, total_ns / 1e6)
    return OK + _TIMING % (len(value), value)


def trailers(refused: Refused) -> bytes:
    message = quote(shown(refused.message), safe=_PRINTABLE).encode()
    code = CODES.get(refused.code, CODES["UNKNOWN"])
    return hpack.encode([(b"grpc-status", b"%d" % code), (b"grpc-message", message)])


def shown(message: str) -> str:
    """Return one line of bounded length that can be sent."""
    line = " ".join(message.split()).encode("utf-8", "replace").decode()
    return line if len(line) <= _MAX_DETAILS else line[: _MAX_DETAILS - 3] + "..."
