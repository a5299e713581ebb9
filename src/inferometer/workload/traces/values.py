"""The values of a column of text as numbers: of tokens, and of nanoseconds, exactly. Rows with other values are broken."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from inferometer.workload.traces.files import RawColumns

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Convert = Callable[["pa.ChunkedArray"], "pa.ChunkedArray"]

_UNIT_DIGITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""Decimal places of a time in this unit that are nanoseconds."""
_MOST_TOKENS = 2**40
_LATEST = 2**61
"""Times and durations may be this far from zero, so that sums and differences fit into 64 bits."""
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_LOCAL = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+)?$"
_ZONED = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+(Z|[+-][0-9:]+)$"


class Faults:
    """The rows of a file that are broken, and the reason of the first."""

    def __init__(self, raw: RawColumns) -> None:
        self.rows = np.zeros(raw.count, bool)
        self._raw = raw
        self._first: tuple[int, str] = (raw.count, "")

    def add(self, rows: Mask, reason: Callable[[int], str]) -> None:
        if rows.any():
            row = int(np.argmax(rows))
            if row < self._first[0]:
                self._first = (row, reason(row))
            self.rows |= rows

    @property
    def first(self) -> str:
        """Where the first broken row is, and why it is broken; empty: there is none."""
        row, reason = self._first
        return f"{self._raw.where(row)}: {reason}" if reason else ""


def tokens(raw: RawColumns, name: str, faults: Faults) -> Integers:
    """The numbers of tokens in a column; -1: none is given."""
    column = raw.columns[name]
    numbers = _converted(_only(column, _matches(column, _NUMBER)), lambda values: pc.cast(values, pa.float64()))
    counts = _filled(numbers, -1.0, np.float64)
    wrong = _valid(column) & ~(
        _valid(numbers) & (counts == np.rint(counts)) & (counts >= -1) & (counts <= _MOST_TOKENS)
    )
    faults.add(wrong, lambda row: _wrong(raw, name, row, "a number of tokens"))
    return np.where(wrong, -1.0, counts).astype(np.int64)


def nanoseconds(raw: RawColumns, name: str, unit: str, faults: Faults) -> tuple[Integers, Mask]:
    """The times or durations in a column, exactly, and which rows have one: numbers in this unit, or dates."""
    column = raw.columns[name]
    times = pa.chunked_array([pa.nulls(raw.count, pa.int64())])
    most = 0
    for pattern, convert in ((_NUMBER, _number(_UNIT_DIGITS[unit])), (_LOCAL, _local_date), (_ZONED, _zoned_date)):
        matches = _matches(column, pattern)
        if (count := int(pc.sum(matches).as_py() or 0)) > most:  # a column has one kind of times: that of most rows
            most = count
            times = _converted(_only(column, matches), convert)
        if most == raw.count:
            break
    numbers = _filled(times, 0, np.int64)
    given = _valid(times) & (np.abs(numbers) <= _LATEST)
    faults.add(_valid(column) & ~given, lambda row: _wrong(raw, name, row, "a time"))
    return np.where(given, numbers, 0), given


def _wrong(raw: RawColumns, name: str, row: int, expected: str) -> str:
    return f"{name} is not {expected}: {str(raw.columns[name][row].as_py())[:40]!r}"


# --- conversions -----------------------------------------------------------------------------------------------------


def _number(digits: int) -> Convert:
    def convert(values: "pa.ChunkedArray") -> "pa.ChunkedArray":
        try:
            exact = pc.cast(values, pa.decimal128(20, digits))
        except pa.ArrowInvalid as error:
            if "data loss" not in str(error):
                raise
            exact = pc.cast(pc.round(pc.cast(values, pa.decimal256(60, 30)), digits), pa.decimal128(20, digits))
        scaled = pc.multiply(exact, pa.scalar(Decimal(10) ** digits, pa.decimal128(10, 0)))
        return pc.cast(scaled, pa.int64())

    return convert


def _local_date(values: "pa.ChunkedArray") -> "pa.ChunkedArray":
    return pc.cast(pc.cast(values, pa.timestamp("ns")), pa.int64())


def _zoned_date(values: "pa.ChunkedArray") -> "pa.ChunkedArray":
    return pc.cast(pc.cast(values, pa.timestamp("ns", tz="UTC")), pa.int64())


def _converted(column: "pa.ChunkedArray", convert: Convert) -> "pa.ChunkedArray":
    """The converted column; values that cannot be converted become null."""
    try:
        return convert(column)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return convert(pa.chunked_array([pa.nulls(1, pa.string())]))
        half = len(column) // 2
        parts = (_converted(column.slice(0, half), convert), _converted(column.slice(half), convert))
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks])


def _matches(column: "pa.ChunkedArray", pattern: str) -> "pa.ChunkedArray":
    return pc.fill_null(pc.match_substring_regex(column, pattern), False)


def _only(column: "pa.ChunkedArray", chosen: "pa.ChunkedArray") -> "pa.ChunkedArray":
    return pc.if_else(chosen, column, pa.scalar(None, pa.string()))


def _filled(column: "pa.ChunkedArray", value: float, dtype: type) -> NDArray[Any]:
    return np.asarray(pc.fill_null(column, value)).astype(dtype)


def _valid(column: "pa.ChunkedArray") -> Mask:
    return np.asarray(pc.is_valid(column)).astype(bool)
