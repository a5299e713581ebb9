"""Validation of the header fields of responses, cached by header block.

Servers send the same few blocks again and again: as long as the dynamic table does not change, a repeated block costs one
look-up. The checks are those that RFC 9113 requires, with one exception: spaces around a value are accepted.
"""

import re
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
    """The :status; 0 if there is none, as in trailers."""
    fault: str = ""
    """Why the headers are not acceptable; empty if they are."""
    code: int = NO_ERROR


class HeaderReader:
    """Reads the header blocks of one connection, in the order of their arrival."""

    __slots__ = ("_decoder", "_limit", "known")

    def __init__(self, limit: int) -> None:
        self._decoder = HpackDecoder()
        self._limit = limit
        self.known: dict[bytes, Block] = {}
        """Blocks that need no second `read`. Emptied when the dynamic table changes."""

    def read(self, raw: bytes) -> Block:
        """Decode and validate a block; raises HpackError."""
        changes = self._decoder.changes
        headers = self._decoder.decode(raw, self._limit)
        block = too_large(self._limit) if headers is None else validate(headers)
        if self._decoder.changes != changes or len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        if self._decoder.changes == changes and len(raw) <= _MAX_KNOWN_BYTES:
            self.known[raw] = block
        return block


def too_large(limit: int) -> Block:
    return Block((), 0, f"the server's headers are larger than {limit} bytes", ENHANCE_YOUR_CALM)


@lru_cache(_MAX_KNOWN)
def validate(headers: Fields) -> Block:
    """Check the fields of a block.

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
            fault = fault or _fault(name, value)
    return (
        Block(headers, status, f"the server's headers are malformed: {fault}", PROTOCOL_ERROR)
        if fault
        else Block(headers, status)
    )


def _fault(name: bytes, value: bytes) -> str:
    if name[:1] == b":":
        return f"{name[:40]!r} is not allowed in a response"
    if not _NAME.fullmatch(name):
        return f"the name {name[:40]!r} is not valid"
    if name in _CONNECTION_HEADERS:
        return f"{name!r} belongs to HTTP/1.1"
    return f"the value of {name[:40]!r} contains a line break or a zero byte" if _BAD_VALUE.search(value) else ""
