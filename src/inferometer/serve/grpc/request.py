"""The headers of a call: its method, timeout, compression, and whether it is allowed. Each header block is parsed once:
clients send the same again and again, and the codec returns the same object for it."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from inferometer.serve import compression
from inferometer.serve.grpc import status
from inferometer.serve.http.token import why_not
from inferometer.serve.models.types import NEVER, Refused
from inferometer.wire.http2 import hpack
from inferometer.wire.http2.events import Fields

if TYPE_CHECKING:
    from inferometer.serve.grpc.call import Call

Data = bytes | memoryview
Unary = Callable[["Call", Data], None]
"""Responds to the one message of a call, now or later, with `Call.reply` or `Call.refuse`."""
Streaming = Callable[["Call"], None]
"""Sets the callbacks of a call that has begun."""

_CONTENT_TYPE = re.compile(rb"application/grpc([+;].*)?", re.DOTALL)
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS = {b"H": 3600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 1000, b"n": 1}
_MAX_CACHED = 1024


class Method(msgspec.Struct, frozen=True):
    """A method of a service; an open one requires no token."""

    start: Unary | Streaming
    is_unary: bool
    is_open: bool


class CallHead(msgspec.Struct, frozen=True):
    """What the headers of a call say."""

    path: str
    method: Method | None = None
    timeout: int = NEVER
    """In ns."""
    encoding: str = ""
    """Compression of the request's messages, if they are compressed."""
    compression: str = ""
    """Compression of the response's messages."""
    block: bytes = b""
    """The header block of the response."""
    trailers: bytes = b""
    """The header block that refuses the call at once; b"" if it is allowed."""
    status: str = "OK"
    """The status of a refused call."""


def _response(compressed: str = "") -> bytes:
    encoding = [(b"grpc-encoding", compressed.encode())] if compressed else []
    accepted = ",".join(("identity", *compression.FORMATS)).encode()
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc"), *encoding]
    return hpack.encode([*fields, (b"grpc-accept-encoding", accepted)])


_RESPONSES = {name: _response(name) for name in ("", *compression.FORMATS)}


class CallHeads:
    """Parses headers, with a cache."""

    def __init__(self, methods: Mapping[bytes, Method], token: str | None) -> None:
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
        path = fields.get(b":path", b"")
        shown = path.decode("latin-1")
        if fields.get(b":method") != b"POST" or not _CONTENT_TYPE.fullmatch(fields.get(b"content-type", b"")):
            return _not_grpc(shown)
        method = self._methods.get(path)
        try:
            self._check(method, shown, fields)
            timeout, encoding = _timeout(fields.get(b"grpc-timeout", b"")), fields.get(b"grpc-encoding", b"")
            how = compression.choose(fields.get(b"accept-encoding", b""))
            return CallHead(shown, method, timeout, compression.named(encoding), how, _RESPONSES[how])
        except Refused as refused:
            return refused_head(shown, refused)

    def _check(self, method: Method | None, path: str, fields: dict[bytes, bytes]) -> None:
        if fields.get(b"te") != b"trailers":
            raise Refused("INTERNAL", "the header te: trailers is missing; a proxy may have removed it")
        if (method is None or not method.is_open) and (why := why_not(self._token, fields.get(b"authorization", b""))):
            raise Refused("UNAUTHENTICATED", why)
        if method is None:
            raise Refused("UNIMPLEMENTED", f"unknown method {path}")


def refused_head(path: str, refused: Refused) -> CallHead:
    return CallHead(path, status=refused.code, trailers=_RESPONSES[""] + status.trailers(refused))


def _not_grpc(path: str) -> CallHead:
    """Refuse what is not gRPC, with the HTTP status of the specification."""
    refused = Refused("UNKNOWN", "HTTP 415: a call is a POST with the content-type application/grpc")  # type: ignore[arg-type]
    fields = [(b":status", b"415"), (b"content-type", b"application/grpc")]
    return CallHead(path, status="415", trailers=hpack.encode(fields) + status.trailers(refused))


def _timeout(text: bytes) -> int:
    if not text:
        return NEVER
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise Refused("INTERNAL", f"grpc-timeout must be up to eight digits and a unit (got {text[:20]!r})")
    return int(found[1]) * _UNITS[found[2]]
