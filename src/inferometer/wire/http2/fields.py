"""Validation of the header fields of requests and responses, cached by header block.

Peers send the same few blocks again and again: as long as the dynamic table does not change, a repeated block costs one
look-up. The checks are those that RFC 9113 requires, with one exception: spaces around a value are accepted.
"""

import re
from collections.abc import Callable, Collection
from functools import lru_cache

import msgspec

from inferometer.wire.http2.events import Fields
from inferometer.wire.http2.frames import ENHANCE_YOUR_CALM, NO_ERROR, PROTOCOL_ERROR
from inferometer.wire.http2.hpack import HpackDecoder

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_STATUS = re.compile(rb"[1-9][0-9][0-9]")
_BAD_VALUE = re.compile(rb"[\x00\r\n]")
_CONNECTION_HEADERS = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}

_MAX_KNOWN = 256
_MAX_KNOWN_BYTES = 1024


class Block(msgspec.Struct, frozen=True, gc=False):
    headers: Fields
    status: int
    """The :status of a response, 1 for a request; 0 if there are no pseudo-headers, as in trailers."""
    fault: str = ""
    """Why the headers are not acceptable; empty if they are."""
    code: int = NO_ERROR


class HeaderReader:
    """Reads the header blocks of one connection, in the order of their arrival."""

    __slots__ = ("_decoder", "_validate", "known", "limit", "peer")

    def __init__(self, limit: int, peer: str, validate: Callable[[Fields], "Block"]) -> None:
        """`limit`: maximum size of a header list. `peer`: the sender, for messages."""
        self._decoder = HpackDecoder()
        self.peer = peer
        self._validate = validate
        self.limit = limit
        self.known: dict[bytes, Block] = {}
        """Blocks that need no second `read`. Emptied when the dynamic table changes."""

    def read(self, raw: bytes) -> Block:
        """Decode and validate a block; raises HpackError."""
        changes = self._decoder.changes
        headers = self._decoder.decode(raw, self.limit)
        block = self._too_large() if headers is None else self._validate(headers)
        if self._decoder.changes != changes or len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        if self._decoder.changes == changes and len(raw) <= _MAX_KNOWN_BYTES:
            self.known[raw] = block
        return block

    def _too_large(self) -> "Block":
        return Block((), 0, f"{self.peer}'s headers are larger than {self.limit} bytes", ENHANCE_YOUR_CALM)


@lru_cache(_MAX_KNOWN)
def validate_response(headers: Fields) -> Block:
    """Check the fields of a response's block.

    Equal fields give the same object, whichever connection they arrived on, so that callers can compare by identity.
    """
    pseudo, fault = _checked(headers, (b":status",), "response")
    status = pseudo.get(b":status")
    if status is not None and not _STATUS.fullmatch(status):
        fault = fault or f":status is not a number: {status[:40]!r}"
    if fault:
        return Block(headers, 0, f"the server's headers are malformed: {fault}", PROTOCOL_ERROR)
    return Block(headers, int(status or 0))


@lru_cache(_MAX_KNOWN)
def validate_request(headers: Fields) -> Block:
    """Check the fields of a request's block, which has all pseudo-headers of a request or, if it has trailers, none."""
    pseudo, fault = _checked(headers, (b":method", b":scheme", b":path", b":authority"), "request")
    if pseudo:
        fault = fault or _target_fault(pseudo)
    if fault:
        return Block(headers, 1 if pseudo else 0, f"the client's headers are malformed: {fault}", PROTOCOL_ERROR)
    return Block(headers, 1 if pseudo else 0)


def _checked(headers: Fields, known: Collection[bytes], kind: str) -> tuple[dict[bytes, bytes], str]:
    """Return the pseudo-headers, which are those of a `kind`, and what is wrong with the fields."""
    pseudo: dict[bytes, bytes] = {}
    fault, seen_regular = "", False
    for name, value in headers:
        if name in known:
            if seen_regular or name in pseudo or _BAD_VALUE.search(value):
                fault = fault or f"{name!r} is sent twice, follows another header, or has a value that is not valid"
            pseudo[name] = value
        else:
            seen_regular = True
            fault = fault or _fault(name, value, kind)
    return pseudo, fault


@lru_cache(_MAX_KNOWN)
def _fault(name: bytes, value: bytes, kind: str) -> str:
    if name[:1] == b":":
        return f"{name[:40]!r} is not allowed in a {kind}"
    if not _NAME.fullmatch(name):
        return f"the name {name[:40]!r} is not valid"
    if name in _CONNECTION_HEADERS:
        return f"{name!r} belongs to HTTP/1.1"
    if name == b"te" and kind == "request" and value.lower() != b"trailers":
        return f"te is {value[:40]!r}, but only 'trailers' is allowed"
    return f"the value of {name[:40]!r} contains a line break or a zero byte" if _BAD_VALUE.search(value) else ""


def _target_fault(pseudo: dict[bytes, bytes]) -> str:
    """Describe what is wrong with a request's pseudo-headers as a whole."""
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if not method:
        return "there is no :method"
    if method == b"CONNECT":
        return "" if len(pseudo) == 2 and b":authority" in pseudo else "CONNECT takes :authority and nothing else"
    if not pseudo.get(b":scheme"):
        return "there is no :scheme"
    if path[:1] != b"/" and not (method == b"OPTIONS" and path == b"*"):
        return f":path is {path[:40]!r}, but must start with '/'" if path else "there is no :path"
    return ""
