"""Validation of the header fields of requests and responses, cached by header block.

Peers send the same few blocks again and again: as long as the dynamic table does not change, a repeated block costs one
look-up. The checks are those that RFC 9113 requires, with one exception: spaces around a value are accepted.
"""

import re
from collections.abc import Callable
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
    status, fault, seen_regular = 0, "", False
    for name, value in headers:
        if name == b":status":
            if status or seen_regular or not _STATUS.fullmatch(value):
                fault = fault or f":status is not a number, not first, or sent twice: {value[:40]!r}"
            else:
                status = int(value)
        else:
            seen_regular = True
            fault = fault or _fault(name, value, "response")
    return (
        Block(headers, status, f"the server's headers are malformed: {fault}", PROTOCOL_ERROR)
        if fault
        else Block(headers, status)
    )


@lru_cache(_MAX_KNOWN)
def _fault(name: bytes, value: bytes, kind: str) -> str:
    if name[:1] == b":":
        return f"{name[:40]!r} is not allowed in a {kind}"
    if not _NAME.fullmatch(name):
        return f"the name {name[:40]!r} is not valid"
    if name in _CONNECTION_HEADERS:
        return f"{name!r} belongs to HTTP/1.1"
    return f"the value of {name[:40]!r} contains a line break or a zero byte" if _BAD_VALUE.search(value) else ""


@lru_cache(_MAX_KNOWN)
def validate_request(headers: Fields) -> Block:
    """Check the fields of a request's block, which has all pseudo-headers of a request or, if it has trailers, none."""
    pseudo: dict[bytes, bytes] = {}
    fault, seen_regular = "", False
    for name, value in headers:
        if name in _REQUEST_PSEUDO:
            if seen_regular or name in pseudo or _BAD_VALUE.search(value):
                fault = fault or f"{name!r} is sent twice, follows another header, or has a value that is not valid"
            pseudo[name] = value
        else:
            seen_regular = True
            fault = fault or _fault(name, value, "request")
            if name == b"te" and value.lower() != b"trailers":
                fault = fault or f"te is {value[:40]!r}, but only 'trailers' is allowed"
    if pseudo:
        fault = fault or _target_fault(pseudo)
    return (
        Block(headers, 1 if pseudo else 0, f"the client's headers are malformed: {fault}", PROTOCOL_ERROR)
        if fault
        else Block(headers, 1 if pseudo else 0)
    )


_REQUEST_PSEUDO = {b":method", b":scheme", b":path", b":authority"}


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
