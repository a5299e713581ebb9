"""Converts typed contents of a ModelInferRequest's inputs (InferTensorContents) to raw ones.

Small ones are parsed by protobuf with the message. Those of a large message are cut out of it (`cut`) and parsed in a
thread, a piece at a time: protobuf blocks all other threads until it has parsed a message, and each of a million
strings is an object.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from inferometer.serve.kserve.grpc_fields import fields, length
from inferometer.serve.kserve.messages import InferTensorContents
from inferometer.serve.models.types import Refused
from inferometer.tensors import DATATYPES, from_numpy
from inferometer.wire.failures import bounded

Filled = Sequence[tuple[Any, Sequence[Any]]]
"""The non-empty fields of an InferTensorContents, as returned by ListFields."""
Data = bytes | memoryview

_PIECE = 4096
"""Strings converted at a time."""
_PIECE_BYTES = 32 * 1024
"""Bytes of contents that protobuf parses at a time."""
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
_TAGS = {number << 3 | 2: field for number, field in enumerate(_FIELDS, start=1)}
"""Tags of strings and packed numbers."""
_AS_THEY_ARE = {"fp32_contents": 4, "fp64_contents": 8}
"""Sizes of the numbers that protobuf packs as raw bytes."""
_LENGTH = struct.Struct("<I")


class Mismatch(Exception):  # noqa: N818  (reported to the client in other words)
    """The contents belong to another datatype, which is the exception's text."""


# --- as protobuf has read them ---------------------------------------------------------------------------------------


def raw(name: str, datatype: str, filled: Filled) -> Data:
    """Return the elements of the single non-empty field as raw bytes. Raises Mismatch, or UserError if an element does
    not fit."""
    for field, _ in filled:
        if datatype not in _FIELDS[field.name]:
            raise Mismatch(_FIELDS[field.name][0])
    return _joined([part for field, values in filled for part in _turned(name, datatype, field.name, values)])


def _turned(name: str, datatype: str, field: str, values: Sequence[Any]) -> Iterator[Data]:
    dtype = DATATYPES[datatype].dtype
    if dtype is not None:  # all at once: numpy reads protobuf's numbers in place, but a slice would be a list
        wide = np.int64 if field in ("int_contents", "uint_contents") else dtype
        yield from_numpy(name, np.array(values, wide), datatype).data
        return
    for at in range(0, len(values), _PIECE):
        some = values[at : at + _PIECE]
        array = np.empty(len(some), object)
        array[:] = some
        yield from_numpy(name, array, "BYTES").data


def _joined(parts: list[Data]) -> Data:
    return parts[0] if len(parts) == 1 else b"".join(parts)


# --- as they were sent -----------------------------------------------------------------------------------------------


def cut(view: memoryview, most: int) -> tuple[list[memoryview], list[memoryview], int]:
    """Return an InferInputTensor without its contents, those contents (several are merged, as in protobuf), and its
    number of fields, which may be at most `most`."""
    rest: list[memoryview] = []
    contents: list[memoryview] = []
    for tag, begin, start, end in fields(view, most):
        if tag == _CONTENTS:
            contents.append(view[start:end])
        else:
            rest.append(view[begin:end])
    return rest, contents, len(rest) + len(contents)


def raw_of_sent(name: str, datatype: str, contents: list[memoryview]) -> Data:
    """Like `raw`, for contents that were cut out; raises Refused if they are invalid."""
    try:
        return _joined([part for one in contents for part in _parts(name, datatype, one) if part])
    except DecodeError as error:
        raise Refused("INTERNAL", f"the message is not a valid ModelInferRequest: {bounded(str(error))}") from None


def _parts(name: str, datatype: str, sent: memoryview) -> Iterator[Data]:
    """Yield small fields together and large ones individually."""
    place = 0
    for tag, begin, start, end in fields(sent, len(sent)):
        if end - start > _PIECE_BYTES and tag in _TAGS:
            yield _read(name, datatype, sent[place:begin])
            yield from _parts_of_one(name, datatype, tag, sent[start:end])
            place = end
        elif end - place > _PIECE_BYTES:
            yield _read(name, datatype, sent[place:end])
            place = end
    yield _read(name, datatype, sent[place:])


def _read(name: str, datatype: str, contents: Data) -> Data:
    return raw(name, datatype, InferTensorContents.FromString(contents).ListFields())


def _parts_of_one(name: str, datatype: str, tag: int, value: memoryview) -> Iterator[Data]:
    field = _TAGS[tag]
    if datatype not in _FIELDS[field]:
        raise Mismatch(_FIELDS[field][0])
    if datatype == "BYTES":
        yield _LENGTH.pack(len(value))
        yield value
    elif field not in _AS_THEY_ARE:
        for piece in _packed(tag, value):
            yield _read(name, datatype, piece)
    elif len(value) % _AS_THEY_ARE[field]:
        raise DecodeError("truncated packed numbers")
    else:
        yield value


def _packed(tag: int, numbers: memoryview) -> Iterator[bytes]:
    """Yield the numbers as separate messages; each number ends with a byte below 0x80."""
    place, end = 0, len(numbers)
    while place < end:
        after = min(place + _PIECE_BYTES, end)
        while after < end and numbers[after - 1] >= 0x80:
            after += 1
        yield b"".join((bytes((tag,)), length(after - place), numbers[place:after]))
        place = after
