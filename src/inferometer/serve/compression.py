"""Compression of HTTP bodies and gRPC messages: gzip and deflate (zlib's format), in both directions."""

import zlib
from collections.abc import Iterable

from inferometer.serve.models.types import Code, Refused

Data = bytes | memoryview

FORMATS = {"gzip": 31, "deflate": 15}
"""zlib's wbits for each format."""
_ANY_FORMAT = 47
_LEVEL = 1
"""Fast: at this level, compressing costs about as much as sending the data over 1 Gbit/s."""
EXPANSION = 32
"""Compressed data may be this many times as large when decompressed, or more: it counts as larger work."""


def named(encoding: bytes) -> str:
    """Return the format that a header names; "" for none."""
    name = encoding.strip().lower().decode("latin-1")
    if name in ("", "identity"):
        return ""
    if name not in FORMATS:
        raise Refused("UNIMPLEMENTED", f"Unsupported compression type {name!r:.40}: expected gzip or deflate")
    return name


def choose(accepted: bytes) -> str:
    """Return the first known format that an Accept-Encoding header names; "" if there is none."""
    names = accepted.decode("latin-1").lower()
    return next((name for name in FORMATS if name in names), "")


def compress(name: str, parts: Iterable[Data]) -> bytes:
    engine = zlib.compressobj(_LEVEL, wbits=FORMATS[name])
    return b"".join([*map(engine.compress, parts), engine.flush()])


def decompress(name: str, data: Data, limit: int, what: str, invalid: Code) -> bytes:
    """Return the data of a body or message; raises Refused if it has more than `limit` bytes or is not valid."""
    engine = zlib.decompressobj(_ANY_FORMAT)
    try:
        plain = engine.decompress(data, limit + 1)
    except zlib.error as error:
        raise Refused(invalid, f"the {what} is not valid {name} data: {error}") from None
    if len(plain) > limit:
        raise Refused("RESOURCE_EXHAUSTED", f"the decompressed {what} is larger than {limit} bytes", status=413)
    if not engine.eof or engine.unused_data:
        raise Refused(invalid, f"the {what} is not valid {name} data: it is truncated, or has data after its end")
    return plain
