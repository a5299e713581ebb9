"""Reads columns of numbers from a file: one number per line, CSV, a JSON list, or one JSON value per line."""

import csv
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError

FORMS = "one number per line, a CSV file with a header, or JSON: a list of numbers, or objects with one key per column"


def columns(path: str, names: Sequence[str | None]) -> list[NDArray[np.float64]]:
    """One array of numbers for each name. A name may be None if the file has a single column."""
    return list(_columns(path, read(path), tuple(names)))


def read(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", f"give a file with {FORMS}") from None


@lru_cache(maxsize=4)
def _columns(path: str, data: bytes, names: tuple[str | None, ...]) -> tuple[NDArray[np.float64], ...]:
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file", f"give a file with {FORMS}") from None
    rows = _json_rows(path, text) if text.lstrip()[:1] in ("[", "{") else _csv_rows(text)
    if not rows:
        raise UserError(f"{path} contains no numbers", f"give a file with {FORMS}")
    return tuple(
        np.array([_number(row, name, index, path, where) for where, row in rows]) for index, name in enumerate(names)
    )


def _csv_rows(text: str) -> list[tuple[str, Any]]:
    """Rows as mappings from column to text, if the file has a header; otherwise as lists. Each with its line."""
    lines = [(f"line {number}", row) for number, row in enumerate(csv.reader(text.splitlines()), 1) if any(row)]
    if not lines or _is_number(lines[0][1][0]):
        return lines
    header = [name.strip() for name in lines[0][1]]
    return [(where, dict(zip(header, row, strict=False))) for where, row in lines[1:]]


def _json_rows(path: str, text: str) -> list[tuple[str, Any]]:
    try:
        if text.lstrip().startswith("["):
            try:
                rows = msgspec.json.decode(text)
                return [(f"entry {number}", row) for number, row in enumerate(rows, 1)]
            except msgspec.DecodeError:  # one list per line?
                pass
        lines = [(f"line {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        return [(where, msgspec.json.decode(line)) for where, line in lines]
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is not JSON: {error}", f"give a file with {FORMS}") from None


def _number(row: Any, name: str | None, index: int, path: str, where: str) -> float:
    """The number in a row: by its name, or by the index of the column if columns have no names."""
    if isinstance(row, dict):
        if name is None and len(row) == 1:
            (value,) = row.values()
        elif name in row:
            value = row[name]
        else:
            problem = f"there is no column {name}" if name else "there are several columns"
            raise UserError(f"{path}, {where}: {problem}", f"name one of: {', '.join(map(str, row))}")
    elif isinstance(row, list):
        if index >= len(row) or (name is None and len(row) > 1):
            raise UserError(f"{path}, {where}: there are {len(row)} numbers", f"give a file with {FORMS}")
        value = row[index]
    else:
        value = row if index == 0 else None
    if not _is_number(value):
        raise UserError(f"{path}, {where}: {value!r} is not a number", "correct it, or leave it out")
    return float(value)


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
