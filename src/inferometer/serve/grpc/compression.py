"""Compression of messages: gzip and deflate (zlib's format), in both directions."""

import zlib
from collections.abc import Iterable

from inferometer.serve.models.types import Refused

Data = bytes | memoryview

FORMATS = {"gzip": 31, "deflate": 15}
"""zlib's wbits for each format."""
_LEVEL = 1
"""Fast: at this level, compressing costs about as much as sending the data over 1 Gbit/s."""


def choose(accept_encoding: bytes) -> str:
    """Return the first known format of an Accept-Encoding header; "" if there is none."""
    names = [name.partition(";")[0].strip() for name in accept_encoding.decode("latin-1").lower().split(",")]
    return next((name for name in names if name in FORMATS), "")


def compress(name: str, parts: Iterable[Data]) -> bytes:
    engine = zlib.compressobj(_LEVEL, wbits=FORMATS[name])
    return b"".join([*map(engine.compress, parts), engine.flush()])


def decompress(name: str, data: Data, limit: int) -> bytes:
    """Return the message; raises Refused if it has more than `limit` bytes or is not valid."""
    engine = zlib.decompressobj(FORMATS[name])
    try:
        message = engine.decompress(data, limit + 1)
    except zlib.error as error:
        raise Refused("INTERNAL", f"the message is not valid {name} data: {error}") from None
    if len(message) > limit:
        raise too_large(f"more than {limit}", limit)
    if not engine.eof:
        raise Refused("INTERNAL", f"the message is not valid {name} data: it is incomplete")
    return message


def too_large(size: object, limit: int) -> Refused:
    return Refused("RESOURCE_EXHAUSTED", f"the message has {size} bytes; the server accepts at most {limit}")
