"""What the fields of an answer's header block mean, remembered by the block that said it.

Servers send the same few blocks again and again: as long as the dynamic table does not change, the second time is one
look-up. Checked is what RFC 9113 calls malformed, with one leniency: spaces around a value are the server's own affair.
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
_OF_CONNECTIONS = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}

_MAX_KNOWN = 256
_MAX_KNOWN_BYTES = 1024


class Block(msgspec.Struct, frozen=True, gc=False):
    headers: Fields
    status: int
    """0: there is none, so these are trailers."""
    fault: str = ""
    """What is wrong with them."""
    code: int = NO_ERROR


class HeaderReader:
    """One connection's header blocks, in the order in which they came."""

    __slots__ = ("_decoder", "_limit", "known")

    def __init__(self, limit: int) -> None:
        self._decoder = HpackDecoder()
        self._limit = limit
        self.known: dict[bytes, Block] = {}
        """What needs no `read` again. Emptied when the table changes."""

    def read(self, raw: bytes) -> Block:
        """Raises HpackError."""
        changes = self._decoder.changes
        headers = self._decoder.decode(raw, self._limit)
        block = too_large(self._limit) if headers is None else understood(headers)
        if self._decoder.changes != changes or len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        if self._decoder.changes == changes and len(raw) <= _MAX_KNOWN_BYTES:
            self.known[raw] = block
        return block


def too_large(limit: int) -> Block:
    return Block((), 0, f"the server's headers are larger than {limit} bytes", ENHANCE_YOUR_CALM)


@lru_cache(_MAX_KNOWN)
def understood(headers: Fields) -> Block:
    """The same object for the same fields, whichever connection they came on: who has seen it need not look again."""
    status, fault, seen_regular = 0, "", False
    for name, value in headers:
        if name == b":status":
            if status or seen_regular or not _STATUS.fullmatch(value):
                fault = fault or f"a :status that is no number, not first or there twice: {value[:40]!r}"
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
        return f"{name[:40]!r} in an answer"
    if not _NAME.fullmatch(name):
        return f"the name {name[:40]!r}"
    if name in _OF_CONNECTIONS:
        return f"{name!r} belongs to HTTP/1.1"
    return f"a line end or a zero byte in the value of {name[:40]!r}" if _BAD_VALUE.search(value) else ""
