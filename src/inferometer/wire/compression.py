"""Compression of bodies and of gRPC messages: gzip, and deflate, which is zlib's format, as HTTP defines it.

The bodies of HTTP responses are decompressed piece by piece, as they arrive.
"""

import gzip
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferometer.types import Fail, Received
from inferometer.wire.failures import bounded

if TYPE_CHECKING:
    from inferometer.wire.http1 import BodyDecoder

GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
KNOWN = ("gzip", "deflate")


def compressed(data: bytes, how: str) -> bytes:
    """Compress data with `how`, one of KNOWN."""
    return gzip.compress(data, mtime=0) if how == "gzip" else zlib.compress(data)


def decompressed(data: bytes) -> bytes:
    """Decompress complete data; raises ValueError if it is not."""
    try:
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else zlib.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None


class DecompressedBody:
    """Passes a body on to its decoder, which it stands in for (wire/http1.py)."""

    is_stream = True

    def __init__(self, encoding: str, body: "BodyDecoder") -> None:
        self._encoding, self._body = encoding, body
        self._stream = zlib.decompressobj(GZIP_OR_ZLIB)

    def reset(self) -> None:
        """Do nothing: it serves one response."""

    def feed(self, pieces: Sequence[bytes], stamps: Sequence[int], into: Received) -> Fail | None:
        if self._encoding not in KNOWN:
            return Fail("compressed", bounded(f"Content-Encoding: {self._encoding}"))
        plain: list[bytes] = []
        for piece in pieces:
            try:
                plain.append(self._stream.decompress(piece, 2 << 20))
            except zlib.error as error:
                return Fail("compressed", bounded(f"Content-Encoding: {self._encoding}, but the body is not: {error}"))
            if self._stream.unconsumed_tail:  # a read has at most 64 KiB
                return Fail("too_large", "more than 2 MiB of a response were compressed to less than 64 KiB")
        return self._body.feed(plain, stamps, into)

    def finish(self, into: Received) -> Fail | None:
        return self._body.finish(into) if self._stream.eof else Fail("cut_short", f"in the {self._encoding} data")


def start_of(encoding: str, data: bytes, most: int) -> bytes:
    """Return the start of the body that compressed data begins with; the data itself if it cannot be read."""
    try:
        return zlib.decompressobj(GZIP_OR_ZLIB).decompress(data, most) if encoding in KNOWN else data
    except zlib.error:
        return data
