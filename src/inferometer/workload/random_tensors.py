"""Random tensors: a pure function of (datatype, shape, range, seed, purpose), the same on every machine.

Elements are made from blocks of random bits, so that a large tensor needs little more memory than its own bytes.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer import tensors
from inferometer.config.lengths import Length
from inferometer.errors import UserError
from inferometer.random_numbers import random_bits
from inferometer.tensors import Tensor
from inferometer.workload import lengths

Range = tuple[float, float]
"""From the first number up to, but not including, the second. Rounding to a narrow type may reach the second."""

_BLOCK = 1 << 12
"""64-bit random numbers generated at a time."""
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", np.uint8)
_DEFAULT_INTEGERS = (0, 128)
"""These fit every type."""
_LONGEST_WORD = 16
_PRECISION = {"BF16": 8, "FP16": 11, "FP32": 24, "FP64": 53}
"""Random bits per float: the type holds all multiples of 2^-n below 1 exactly, so that none is rounded up to 1."""
_LARGEST = {"BF16": 3.3895313892515355e38}
"""The largest number of a type that numpy does not have."""


def random(
    name: str, datatype: str, shape: Sequence[int], seed: int, purpose: str, bounds: Range | None = None
) -> Tensor:
    """A random tensor: by default floats in [0, 1), integers in 0..127, and for BYTES 1 to 16 letters and digits."""
    count = tensors.elements(shape)
    if tensors.datatype_of(name, datatype).size == 0:
        return random_words(name, shape, seed, purpose)
    pieces = _floats if datatype in _PRECISION else _integers
    return Tensor(name, datatype, tuple(shape), b"".join(pieces(name, datatype, count, seed, purpose, bounds)))


def check_range(name: str, datatype: str, bounds: Range) -> None:
    """Raise UserError when a tensor of this datatype cannot have random numbers in this range."""
    low, high = bounds
    text, key = f"[{low:g}, {high:g}]" if _is_float(bounds) else f"[{low}, {high}]", f"data.fill.{name}"
    if datatype == "BYTES":
        raise UserError("BYTES have no range of numbers", "give {strings: [...]} or {length: N}", key)
    if not low < high:
        raise UserError(f"the range {text} is empty: its end is not included", "give [low, high], low first", key)
    if datatype in _PRECISION:
        kind = tensors.datatype_of(name, datatype).dtype
        most = _LARGEST[datatype] if kind is None else float(np.finfo(kind).max)
        if not (math.isfinite(high - low) and -most <= low and high <= most):
            raise UserError(f"the range {text} does not fit into {datatype}", f"give numbers up to {most:g}", key)
        return
    if _is_float(bounds):
        raise UserError(f"the range {text} has fractions, but the input is {datatype}", "give whole numbers", key)
    kind = tensors.datatype_of(name, datatype).dtype
    assert kind is not None
    least, most = (0, 1) if datatype == "BOOL" else (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    if low < least or high - 1 > most:
        raise UserError(
            f"the range {text} does not fit into {datatype}, which holds {least} to {most}",
            f"give a range within [{least}, {most + 1}]; its end is not included",
            key,
        )


def _is_float(bounds: Range) -> bool:
    return any(isinstance(bound, float) and not bound.is_integer() for bound in bounds)


def random_words(name: str, shape: Sequence[int], seed: int, purpose: str, length: Length | None = None) -> Tensor:
    """Strings of random letters and digits, with these lengths."""
    count = tensors.elements(shape)
    if length is None:
        sizes = _below(_LONGEST_WORD, count, seed, f"{purpose} lengths") + 1
    else:
        sizes = lengths.sample(length, seed, np.arange(count, dtype=np.uint64), f"{purpose} lengths")
    letters = _LETTERS[_below(len(_LETTERS), int(sizes.sum()), seed, purpose)].tobytes()
    ends = np.cumsum(sizes).tolist()
    words = [letters[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]
    return tensors.from_bytes(name, shape, words)


def chosen_words(name: str, shape: Sequence[int], seed: int, purpose: str, words: Sequence[str]) -> Tensor:
    """Each element is one of `words`."""
    chosen = _below(len(words), tensors.elements(shape), seed, purpose).tolist()
    return tensors.from_bytes(name, shape, [words[n].encode() for n in chosen])


def _below(limit: int, count: int, seed: int, purpose: str) -> NDArray[np.int64]:
    """`count` random whole numbers below a small limit."""
    blocks = [
        (lanes.astype(np.uint64) * np.uint64(limit)) >> np.uint64(32) for lanes in _lanes(4, count, seed, purpose)
    ]
    return np.concatenate(blocks).astype(np.int64) if blocks else np.zeros(0, np.int64)


def _lanes(width: int, count: int, seed: int, purpose: str) -> Iterator[NDArray[Any]]:
    """`count` random unsigned numbers of `width` bytes, block by block."""
    per_block = _BLOCK * 8 // width
    for first in range(0, count, per_block):
        wanted = min(per_block, count - first)
        start = first * width // 8
        counters = np.arange(start, start + -(-wanted * width // 8), dtype=np.uint64)
        yield random_bits(seed, counters, purpose).astype("<u8", copy=False).view(f"<u{width}")[:wanted]


def _floats(name: str, datatype: str, count: int, seed: int, purpose: str, bounds: Range | None) -> Iterator[bytes]:
    bits = _PRECISION[datatype]
    width = 8 if datatype == "FP64" else 4
    kind = np.dtype(np.float64 if bounds is not None or datatype == "FP64" else np.float32)
    for lanes in _lanes(width, count, seed, purpose):
        array = (lanes >> (8 * width - bits)).astype(kind) * kind.type(2.0**-bits)
        if bounds is not None:
            array = np.minimum(bounds[0] + array * (bounds[1] - bounds[0]), bounds[1])
        yield bytes(tensors.from_numpy(name, array, datatype).data)


def _integers(name: str, datatype: str, count: int, seed: int, purpose: str, bounds: Range | None) -> Iterator[bytes]:
    kind = tensors.datatype_of(name, datatype).dtype
    assert kind is not None
    low, high = map(int, bounds if bounds is not None else (0, 2) if datatype == "BOOL" else _DEFAULT_INTEGERS)
    span = high - low
    is_narrow = span <= 256 and not span & (span - 1)  # a power of 2: the lowest bits of a byte
    for lanes in _lanes(1 if is_narrow else 4 if span <= 1 << 32 else 8, count, seed, purpose):
        if is_narrow:
            array = lanes & np.uint8(span - 1)
        elif span <= 1 << 32:
            array = (lanes.astype(np.uint64) * np.uint64(span)) >> np.uint64(32)
        else:
            array = lanes % np.uint64(span) if span < 1 << 64 else lanes
        if low:  # adding a negative number modulo 2^64 gives the bits of the signed result
            array = array.astype(np.uint64) + np.uint64(low % (1 << 64))
        yield array.astype(kind).tobytes()
