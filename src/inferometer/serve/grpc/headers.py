"""The headers and trailers of a call.

Headers say its method, timeout and compression, and whether it is allowed. Each header block is parsed once: clients send
the same again and again, and the codec returns the same object for it. Trailers carry the status: a code, and a message
of one line.
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from inferometer.serve import access, compression
from inferometer.serve.models.types import NEVER, Refused
from inferometer.wire import grpc_framing, server_timing
from inferometer.wire.http2 import hpack
from inferometer.wire.http2.events import Fields

if TYPE_CHECKING:
    from inferometer.serve.grpc.call import Call

Data = bytes | memoryview
Unary = Callable[["Call", Data], None]
"""Responds to the one message of a call, now or later, with `Call.reply` or `Call.refuse`."""
Streaming = Callable[["Call"], None]
"""Sets the callbacks of a call that has begun."""

_MAX_CACHED = 1024

# --- trailers --------------------------------------------------------------------------------------------------------

OK = hpack.encode([(b"grpc-status", b"0")])
_TIMING = OK + b"\x00\x0dserver-timing%c%b"  # a literal field without indexing; its value is shorter than 127 bytes


def timed(queue_ns: int, compute_ns: int, total_ns: int) -> bytes:
    """Return the trailers of a successful call, with the server's own times."""
    value = server_timing.FORMAT % (queue_ns * 1e-6, compute_ns * 1e-6, total_ns * 1e-6)
    return _TIMING % (len(value), value)


def trailers(refused: Refused) -> bytes:
    return grpc_framing.trailers(refused.code, refused.message)


# --- headers ---------------------------------------------------------------------------------------------------------

_ACCEPTED = ",".join(("identity", *compression.FORMATS)).encode()
RESPONSE = hpack.encode(
    [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", _ACCEPTED)]
)
"""The headers of all responses."""
_CONTENT_TYPE = re.compile(rb"application/grpc([+;].*)?", re.DOTALL)


class Method(msgspec.Struct, frozen=True):
    """A method of a service; an open one requires no token."""

    start: Unary | Streaming
    is_unary: bool = True
    is_open: bool = False


class CallHead(msgspec.Struct, frozen=True):
    """What the headers of a call say."""

    path: str
    method: Method | None = None
    timeout: int = NEVER
    """In ns."""
    encoding: str = ""
    """Compression of the request's messages, if they are compressed."""
    trailers: bytes = b""
    """The header block that refuses the call at once; b"" if it is allowed."""
    status: str = "OK"
    """The status of a refused call."""


class CallHeads:
    """Parses headers, with a cache."""

    def __init__(self, methods: Mapping[str, Method], token: str | None) -> None:
        self._methods, self._token = methods, token
        self._known: dict[int, tuple[Fields, CallHead]] = {}

    def head(self, headers: Fields) -> CallHead:
        known = self._known.get(id(headers))
        if known is not None and known[0] is headers:
            return known[1]
        parsed = self._parse(dict(headers))
        if len(self._known) >= _MAX_CACHED:
            self._known.clear()
        self._known[id(headers)] = headers, parsed
        return parsed

    def _parse(self, fields: dict[bytes, bytes]) -> CallHead:
        path = fields.get(b":path", b"").decode("latin-1")
        if fields.get(b":method") != b"POST" or not _CONTENT_TYPE.fullmatch(fields.get(b"content-type", b"")):
            return _not_grpc(path)
        method = self._methods.get(path)
        try:
            if fields.get(b"te") != b"trailers":
                raise Refused("INTERNAL", "the header te: trailers is missing; a proxy may have removed it")
            is_open = method is not None and method.is_open
            if not is_open and (why := access.why_not(self._token, fields.get(b"authorization", b""))):
                raise Refused("UNAUTHENTICATED", why)
            if method is None:
                raise Refused("UNIMPLEMENTED", f"unknown method {path}")
            encoding = compression.named(fields.get(b"grpc-encoding", b""))
            timeout = grpc_framing.parse_timeout(fields[b"grpc-timeout"]) if b"grpc-timeout" in fields else NEVER
            return CallHead(path, method, timeout, encoding)
        except Refused as refused:
            return refused_head(path, refused)
        except ValueError as error:
            return refused_head(path, Refused("INTERNAL", str(error)))


def refused_head(path: str, refused: Refused) -> CallHead:
    return CallHead(path, status=refused.code, trailers=RESPONSE + trailers(refused))


def _not_grpc(path: str) -> CallHead:
    """Refuse what is not gRPC, with the HTTP status of the specification."""
    refused = Refused("UNKNOWN", "HTTP 415: a call is a POST with the content-type application/grpc")  # type: ignore[arg-type]
    fields = [(b":status", b"415"), (b"content-type", b"application/grpc")]
    return CallHead(path, status="415", trailers=hpack.encode(fields) + trailers(refused))
