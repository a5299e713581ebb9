"""The trace of each request, and the `traceparent` header that carries it to the server (W3C Trace Context).

Every request is a trace of its own. Its ids follow from the run's tag and the request's id alone, so that the process that sends the
request and the one that exports its span (publish/spans.py) agree without exchanging anything.

    trace id    8 bytes that the run's requests share, then 8 bytes of the request
    span id     the same 8 bytes of the request
"""

import hashlib
from collections.abc import Callable

import msgspec

from inferometer.wire.http2.hpack import encode

NAME = "traceparent"
_STEP = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio. Receivers that keep a share of all traces go by the last bytes of the trace id: multiples of this
number are spread evenly, however the requests are numbered, and no two are equal because it is odd."""
_MASK = (1 << 64) - 1
_IDS = b"%016x-%016x-01"
"""The end of the header's value: the request's half of the trace id, the span id, and the flag `sampled`."""


class TraceIds(msgspec.Struct, frozen=True):
    """The ids of a run's traces."""

    run: bytes
    """First half of every trace id."""
    offset: int
    """What the second half of request 0 is."""

    def of(self, id: int) -> int:
        """Return the second half of a request's trace id, which is also the id of its span."""
        return (id * _STEP + self.offset) & _MASK


def trace_ids(tag: str) -> TraceIds:
    """Return the trace ids of the run with this tag."""
    digest = hashlib.sha256(tag.encode()).digest()
    return TraceIds(digest[:8], int.from_bytes(digest[8:16], "big"))


def http1_header(tag: str) -> Callable[[int], bytes]:
    """Return what makes the header line of a request from its id; it follows the value of another header."""
    return _formatter(tag, b"\r\n%b: " % NAME.encode())


def http2_header(tag: str) -> Callable[[int], bytes]:
    """Return what makes the header of a request from its id, as an HPACK block that follows another block."""
    ids = trace_ids(tag)
    block = encode([(NAME.encode(), _value_start(ids) + _IDS % (0, 0))])
    size = len(_value_start(ids) + _IDS % (0, 0))
    return _formatter(tag, block[:-size])


def _formatter(tag: str, start: bytes) -> Callable[[int], bytes]:
    ids = trace_ids(tag)
    of, template = ids.of, start + _value_start(ids) + _IDS

    def header(id: int) -> bytes:
        own = of(id)
        return template % (own, own)

    return header


def _value_start(ids: TraceIds) -> bytes:
    return b"00-%b" % ids.run.hex().encode()
