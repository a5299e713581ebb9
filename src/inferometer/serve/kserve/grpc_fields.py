"""Finds the fields of a protobuf message without parsing their contents.

protobuf parses a whole message at once and blocks all other threads meanwhile, so large fields are found here and
removed from the message first. protobuf validates what remains; a message that is malformed between its fields raises
DecodeError.
"""

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from inferometer.serve.models.types import Refused

MOST = 10_000
"""Maximum fields examined per message, which takes some milliseconds."""
Field = tuple[int, int, int, int]
"""The tag, where the field begins, where its value begins, and where both end."""

_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5
_FIRST = 1 << 3
"""The smallest valid tag."""
_LONGEST_LENGTH = 5
_LONGEST_NUMBER = 10
"""Maximum bytes of a varint."""


def fields(data: bytes | memoryview, most: int) -> Iterator[Field]:
    """Yield all fields, known or not; raises Refused if there are more than `most`. The obsolete groups are not
    supported."""
    place, end = 0, len(data)
    try:
        while place < end:
            begin, tag = place, data[place]
            place += 1
            if tag >= 0x80:
                tag, place = varint(data, begin)
            if tag < _FIRST:
                raise DecodeError("a field has the number 0")
            kind = tag & 7
            if kind == _SIZED:
                size = data[place]
                place += 1
                if size >= 0x80:
                    size, place = varint(data, place - 1)
                after = place + size
            elif kind == _VARINT:
                after = _behind_number(data, place)
            elif kind in _FIXED:
                after = place + _FIXED[kind]
            else:
                raise DecodeError(f"a field has the unsupported wire type {kind}")
            if after > end:
                raise DecodeError("truncated field")
            most -= 1
            if most < 0:
                raise Refused("INVALID_ARGUMENT", f"the message has more than {MOST} fields")
            yield tag, begin, place, after
            place = after
    except IndexError:
        raise DecodeError("truncated field") from None


_FIXED = {_EIGHT: 8, _FOUR: 4}


def _behind_number(data: bytes | memoryview, place: int) -> int:
    for after in range(place, place + _LONGEST_NUMBER):
        if data[after] < 0x80:
            return after + 1
    raise DecodeError("truncated number")


def varint(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """Return a tag or length, and where it ends; raises IndexError if the data ends before it."""
    value = 0
    for i in range(_LONGEST_LENGTH):
        byte = data[place + i]
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, place + i + 1
    raise DecodeError("truncated length")


def length(size: int) -> bytes:
    if size < 0x80:
        return _ONE_BYTE[size]
    made = bytearray()
    while size >= 0x80:
        made.append(size & 0x7F | 0x80)
        size >>= 7
    made.append(size)
    return bytes(made)


_ONE_BYTE = [bytes((size,)) for size in range(0x80)]
