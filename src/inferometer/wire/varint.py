"""Protobuf's variable-length integers, for code that reads or writes messages without the protobuf library."""

_ONE_BYTE = [bytes((number,)) for number in range(0x80)]


def read(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the number at `at`, and where it ends; raises IndexError if the data ends before it."""
    value = shift = 0
    while data[at] >= 0x80 and shift < 63:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1


def encode(number: int) -> bytes:
    if number < 0x80:
        return _ONE_BYTE[number]
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
