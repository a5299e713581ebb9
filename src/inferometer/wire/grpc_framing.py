"""What gRPC's clients and servers share: the framing of messages, status codes and trailers, timeouts.

Each message is preceded by one byte that says whether it is compressed and four bytes with its length.
"""

import re
import struct
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from inferometer.wire.compression import KNOWN, compressed, decompressed
from inferometer.wire.failures import bounded
from inferometer.wire.http2.hpack import encode

# --- messages --------------------------------------------------------------------------------------------------------

PREFIX = struct.Struct(">BI")
_LARGE = 64 * 1024
_DISCARDED = ((0, b""),)


def framed(message: bytes, compression: str = "none") -> bytes:
    """Encode one message with its frame header, compressed if requested."""
    if compression == "none":
        return PREFIX.pack(0, len(message)) + message
    packed = compressed(message, compression)
    return PREFIX.pack(1, len(packed)) + packed


class MessageSplitter:
    """Splits the DATA of a stream into messages. The pieces of a large message are joined only once.

    With `keep=False`, uncompressed messages are only counted: their bytes are discarded and they come out empty. With a
    `limit`, a larger message raises ValueError as soon as it is announced, and a large one is collected in a buffer of its
    announced size, so that it never takes its size twice; it comes out as a memoryview.
    """

    __slots__ = ("_buffered", "_filled", "_flag", "_keep", "_large", "_limit", "_needed", "_pieces", "_skip")

    def __init__(self, keep: bool = True, limit: int = 0) -> None:
        self._keep, self._limit = keep, limit
        self._pieces: list[bytes | memoryview] = []
        self._buffered = 0
        self._needed = 5
        self._skip = 0  # bytes still to come of a message that is discarded
        self._large: memoryview | None = None
        self._flag = self._filled = 0  # of the large message

    def feed(self, data: bytes | memoryview) -> Sequence[tuple[int, Any]]:
        """Return the messages that `data` completes, each with its flag (1: compressed)."""
        if self._skip:
            return self._discard(data)
        if self._large is not None:
            return self._fill(self._large, data)
        if not self._buffered and len(data) >= 5:
            flag, length = PREFIX.unpack_from(data)
            if len(data) == 5 + length and not 0 < self._limit < length:
                return ((flag, data[5:]),) if self._keep or flag else _DISCARDED  # exactly one message: nearly always
        self._pieces.append(data)
        self._buffered += len(data)
        if self._buffered < self._needed:
            return ()
        return self._split()

    def _discard(self, data: bytes | memoryview) -> Sequence[tuple[int, Any]]:
        if len(data) < self._skip:
            self._skip -= len(data)
            return ()
        rest, self._skip = data[self._skip :], 0
        return [*_DISCARDED, *self.feed(rest)] if rest else _DISCARDED

    def _fill(self, large: memoryview, data: bytes | memoryview) -> Sequence[tuple[int, Any]]:
        count = min(len(data), len(large) - self._filled)
        large[self._filled : self._filled + count] = memoryview(data)[:count]
        self._filled += count
        if self._filled < len(large):
            return ()
        self._large = None
        rest = data[count:]
        return [(self._flag, large), *self.feed(rest)] if rest else [(self._flag, large)]

    def _split(self) -> list[tuple[int, Any]]:
        joined = b"".join(self._pieces)
        messages = []
        at, self._needed = 0, 5
        while len(joined) - at >= 5:
            flag, length = PREFIX.unpack_from(joined, at)
            if self._limit and length > self._limit:
                raise ValueError(f"the message has {length} bytes; the server accepts at most {self._limit}")
            if len(joined) - at < 5 + length:
                if not self._keep and not flag:
                    self._skip = 5 + length - (len(joined) - at)
                    at = len(joined)
                elif self._limit and length > _LARGE:
                    self._large, self._flag, self._filled = np.empty(length, np.uint8).data, flag, 0
                    self._fill(self._large, joined[at + 5 :])
                    at = len(joined)
                else:
                    self._needed = 5 + length
                break
            messages.append((flag, joined[at + 5 : at + 5 + length] if self._keep or flag else b""))
            at += 5 + length
        rest = joined[at:] if at else joined
        self._pieces = [rest] if rest else []
        self._buffered = len(rest)
        return messages

    @property
    def is_mid_message(self) -> bool:
        """Whether a message has begun and is not complete."""
        return self._buffered > 0 or self._skip > 0 or self._large is not None


def plain(flag: int, message: bytes, encoding: bytes) -> bytes:
    """Decompress a message if its flag is set; raise ValueError when that is not possible."""
    if not flag:
        return message
    if (how := encoding.decode("latin-1")) not in KNOWN:
        raise ValueError(f"a message has an unsupported compression: {how or 'none declared'!r}")
    try:
        return decompressed(message)
    except ValueError as error:
        raise ValueError(f"a compressed message is corrupt: {error}") from None


# --- status ----------------------------------------------------------------------------------------------------------

STATUS = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
_MAX_DETAILS = 1000
"""Maximum length of a status message: it is sent in the trailers, which clients limit to a few kB."""
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def status_name(status: bytes) -> str:
    """The name of a grpc-status value; the value itself if gRPC does not define it."""
    return STATUS[int(status)] if status.isdigit() and int(status) < len(STATUS) else bounded(status.decode("latin-1"))


def status_number(name: str) -> int:
    """The number of a status name, the inverse of `status_name`; UNKNOWN's for a name that gRPC does not define."""
    return STATUS.index(name if name in STATUS else "UNKNOWN")


def trailers(status: str, message: str) -> bytes:
    """Encode the trailers of a call that failed, or its whole response if there was no other."""
    text = quote(one_line(message), safe=_PRINTABLE).encode()
    return encode([(b"grpc-status", b"%d" % status_number(status)), (b"grpc-message", text)])


def one_line(message: str) -> str:
    """Return one line of bounded length that can be sent."""
    line = " ".join(message.split()).encode("utf-8", "replace").decode()
    return line if len(line) <= _MAX_DETAILS else line[: _MAX_DETAILS - 3] + "..."


# --- timeouts --------------------------------------------------------------------------------------------------------

_UNITS = ((1_000_000_000, b"n"), (1_000_000, b"u"), (1_000, b"m"), (1, b"S"))
_MAX_TIMEOUT = 99_999_999
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_NANOSECONDS = {b"H": 3600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 1000, b"n": 1}


def timeout(seconds: float) -> bytes:
    """Format a duration for grpc-timeout: at most eight digits and the finest unit that fits."""
    for parts, unit in _UNITS:
        count = round(seconds * parts)
        if count <= _MAX_TIMEOUT:
            return b"%d%b" % (max(count, 1), unit)
    return b"%dS" % _MAX_TIMEOUT


def parse_timeout(text: bytes) -> int:
    """Return the nanoseconds of a grpc-timeout; raises ValueError if it is not valid."""
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise ValueError(f"grpc-timeout must be up to eight digits and a unit (got {text[:20]!r})")
    return int(found[1]) * _NANOSECONDS[found[2]]
