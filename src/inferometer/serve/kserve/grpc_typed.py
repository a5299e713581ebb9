"""Typed contents of a ModelInferRequest's inputs (InferTensorContents), turned into raw ones.

Small ones come as protobuf has read them. Large ones are cut out of the message unread (`cut`) and read in a thread, a piece at
a time: protobuf lets no other thread go on before it has read all that it is given, and each of a million strings is an object.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from inferometer.serve.kserve.messages import InferTensorContents, Message
from inferometer.serve.models.types import Refused
from inferometer.tensors import DATATYPES, from_numpy
from inferometer.wire.failures import bounded

LARGE = 64 * 1024
"""Bytes of an input from which on its contents are cut out."""
_PIECE = 4096
"""Elements that are turned at a time."""
_PIECE_BYTES = 32 * 1024
"""Bytes of packed numbers that protobuf reads at a time."""
_FIELDS = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT32", "INT16", "INT8"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT32", "UINT16", "UINT8"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}
_CONTENTS = 0x2A  # field 5 of InferInputTensor, length-delimited
_STRING = 0x42  # field 8 of InferTensorContents
_NUMBERS = {number << 3 | 2: field for number, field in enumerate(list(_FIELDS)[:7], start=1)}
"""Packed ones, by their tag."""
_LENGTH = struct.Struct("<I")


class Mismatch(Exception):  # noqa: N818  (told to the client in other words)
    """The contents are those of another datatype: this one."""


# --- as protobuf has read them ---------------------------------------------------------------------------------------


def is_empty(contents: Message) -> bool:
    return not contents.ListFields()


def raw(name: str, datatype: str, contents: Message) -> bytes | memoryview:
    """The elements of the one field that is filled, as raw bytes. Mismatch, or UserError where one does not fit."""
    for field, _ in contents.ListFields():
        if datatype not in _FIELDS[field.name]:
            raise Mismatch(_FIELDS[field.name][0])
    parts = [
        _turned(name, datatype, field.name, values[at : at + _PIECE])
        for field, values in contents.ListFields()
        for at in range(0, len(values), _PIECE)
    ]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _turned(name: str, datatype: str, field: str, values: Sequence[Any]) -> bytes | memoryview:
    dtype = DATATYPES[datatype].dtype
    if dtype is not None:
        wide = np.int64 if field in ("int_contents", "uint_contents") else dtype
        return from_numpy(name, np.array(values, wide), datatype).data
    array = np.empty(len(values), object)
    array[:] = values
    return from_numpy(name, array, "BYTES").data


# --- as they were sent -----------------------------------------------------------------------------------------------


def cut(view: memoryview) -> tuple[bytes, list[memoryview]] | None:
    """An InferInputTensor without its contents, and those: where there are several, one after the other, as protobuf merges
    them. None where that is left to protobuf."""
    rest: list[memoryview] = []
    contents: list[memoryview] = []
    place, end = 0, len(view)
    while place < end:
        tag = view[place]
        if tag & 7 != 2 or tag >= 0x80:
            return None
        try:
            size, start = varint(view, place + 1)
        except IndexError:
            return None
        after = start + size
        if after > end:
            return None
        if tag == _CONTENTS:
            contents.append(view[start:after])
        else:
            rest.append(view[place:after])
        place = after
    return b"".join(rest), contents


def raw_of_sent(name: str, datatype: str, contents: list[memoryview]) -> bytes | memoryview:
    """As `raw`, of contents that were cut out; Refused where they are none."""
    sent = b"".join(contents)
    try:
        parts = _pieces(name, datatype, sent)
        if parts is None:
            return raw(name, datatype, InferTensorContents.FromString(sent))
        return b"".join(parts)
    except DecodeError as error:
        raise Refused("INTERNAL", f"the message is no ModelInferRequest: {bounded(str(error))}") from None


def _pieces(name: str, datatype: str, sent: bytes) -> list[bytes | memoryview] | None:
    """None where there is anything else than strings, or packed numbers, of that datatype."""
    parts: list[bytes | memoryview] = []
    few: list[bytes] = []
    pack, strings = _LENGTH.pack, datatype == "BYTES"
    place, end = 0, len(sent)
    while place < end:
        tag = sent[place]
        try:
            size, start = sent[place + 1], place + 2
            if size >= 0x80:
                size, start = varint(sent, place + 1)
        except IndexError:
            return None
        after = start + size
        if after > end:
            return None
        if tag == _STRING and strings:
            few += (pack(size), sent[start:after])
            if len(few) >= 2 * _PIECE:
                parts.append(b"".join(few))
                few = []
        elif tag in _NUMBERS and datatype in _FIELDS[_NUMBERS[tag]]:
            for piece in _packed(tag, sent, start, after):
                parts.append(raw(name, datatype, InferTensorContents.FromString(piece)))
        else:
            return None
        place = after
    return [*parts, *few]


def _packed(tag: int, sent: bytes, place: int, end: int) -> Iterator[bytes]:
    """The numbers from `place` on as messages of their own. Where they are of no fixed size, each ends below 0x80."""
    fixed = _NUMBERS[tag] in ("fp32_contents", "fp64_contents")
    while place < end:
        after = min(place + _PIECE_BYTES, end)
        while not fixed and after < end and sent[after - 1] >= 0x80:
            after += 1
        yield bytes((tag,)) + length(after - place) + sent[place:after]
        place = after


# --- lengths ---------------------------------------------------------------------------------------------------------


def varint(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """A length, and where it ends; IndexError where it does not."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise IndexError("a length has no end")


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
