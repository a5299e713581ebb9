"""The header of a GGUF file: metadata, and names, shapes and types of its tensors; the weights are not read."""

import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

_MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Formats of the types of metadata."""
_STRING, _ARRAY = 8, 9
_MOST = 1 << 24
"""Length of a string or an array that can still be meant."""


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: int


def read_gguf(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """Read the header. Raises ValueError or struct.error when it is not one. Arrays, such as the vocabulary, are skipped: their length counts."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError("not a GGUF file")
        version, tensors, pairs = _read(file, "<I"), _read(file, "<Q"), _read(file, "<Q")
        if version < 2 or tensors > _MOST or pairs > _MOST:
            raise ValueError("an unknown version of GGUF")
        metadata = {}
        for _ in range(pairs):
            name = _text(file)
            metadata[name] = _value(file, _read(file, "<I"))
        return metadata, [_tensor(file) for _ in range(tensors)]


def _tensor(file: BinaryIO) -> Tensor:
    name, count = _text(file), _read(file, "<I")
    shape = tuple(_read(file, "<Q") for _ in range(min(count, 8)))
    kind, _ = _read(file, "<I"), _read(file, "<Q")
    return Tensor(name, shape, kind)


def _read(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _text(file: BinaryIO) -> str:
    size = _read(file, "<Q")
    if size > _MOST:
        raise ValueError("a string is too long")
    return file.read(size).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        if kind not in _SCALARS:
            raise ValueError(f"an unknown type of metadata, {kind}")
        return _read(file, _SCALARS[kind])
    inner, count = _read(file, "<I"), _read(file, "<Q")
    if count > _MOST:
        raise ValueError("an array is too long")
    if inner in _SCALARS:
        file.seek(count * struct.calcsize(_SCALARS[inner]), 1)
    else:
        for _ in range(count):
            _value(file, inner)
    return count
