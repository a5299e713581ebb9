"""Opens files of rows, whatever their format: JSON, JSON lines, CSV, TSV, Parquet, Arrow, plain text; with gzip or without.

The name decides about the format, then the first bytes, then the type of the data section.
"""

import contextlib
import gzip
import hashlib
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.workload.datasets import arrow
from inferometer.workload.datasets.rows import Buffer, JsonRows, LineRows, Rows, json_row, map_file, text_row

_LISTS = ("data", "rows", "examples")
"""Keys under which a JSON object has its rows, such as SQuAD's."""
_SMALL = 1 << 20


def read_json(path: str, data: Buffer) -> Rows:
    """JSON lines, a JSON array, or an object with an array; the content decides."""
    start = bytes(data[:4096]).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] == b"[":
        return JsonRows(_array(path, data), data)
    lines = LineRows(data, json_row)
    if start[:1] == b"{":
        try:
            whole = msgspec.json.decode(_without_mark(data), type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return lines
        for name in _LISTS:
            if name in whole and bytes(memoryview(whole[name])[:1]) == b"[":
                return JsonRows(msgspec.json.decode(whole[name], type=list[msgspec.Raw]), data)
        return lines if len(lines) == 1 else JsonRows([msgspec.Raw(_without_mark(data))], data)
    return lines


def _array(path: str, data: Buffer) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(_without_mark(data), type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is not JSON: {error}", "fix the file, or write one object per line", "data.path"
        ) from None


def _without_mark(data: Buffer) -> Any:
    return memoryview(data)[3:] if data[:3] == b"\xef\xbb\xbf" else data


def read_text(path: str, data: Buffer) -> Rows:
    """Plain text: each line is a prompt."""
    return read_json(path, data) if bytes(data[:1]) == b"{" else LineRows(data, text_row)


_Reader = Callable[[str, Any], Rows]
_READERS: dict[str, _Reader] = {
    "json": read_json, "jsonl": read_json, "ndjson": read_json,
    "csv": arrow.read_csv, "tsv": arrow.read_csv, "tab": arrow.read_csv,
    "parquet": arrow.read_parquet, "pq": arrow.read_parquet,
    "arrow": arrow.read_arrow, "feather": arrow.read_arrow,
    "txt": read_text,
}  # fmt: skip
"""By the ending of the name."""
_MAGIC: dict[bytes, _Reader] = {b"PAR1": arrow.read_parquet, b"ARRO": arrow.read_arrow}
_FALLBACK: dict[str, _Reader] = {"csv": arrow.read_csv, "parquet": arrow.read_parquet}
"""By the type of the data section; for all others JSON."""


def open_rows(name: str, kind: str) -> Rows:
    """Open a file, or a folder of Parquet or Arrow files, for data of type `kind`."""
    path = Path(name).expanduser()
    if path.is_dir():
        return arrow.read_parquet(str(path))
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    reader = _READERS.get(ending)
    if reader is None or (reader is read_text and kind == "csv"):
        with readable(path), path.open("rb") as file:
            start = file.read(4)
        reader = _MAGIC.get(start) or _FALLBACK.get(kind) or read_json
    if reader in (arrow.read_parquet, arrow.read_arrow):
        with readable(path):
            path.open("rb").close()
        return reader(str(path), None)
    return reader(str(path), mapped(path))


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors in reading a file into a UserError about data.path."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a complete gzip file: {error}", "check the file", "data.path") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}",
            "check the path, which is relative to the working directory",
            "data.path",
        ) from None


def mapped(path: Path) -> Buffer:
    """The content of a file, unpacked if it is compressed."""
    with readable(path), path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            with gzip.open(path) as packed, tempfile.TemporaryFile() as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
                return map_file(unpacked)
        return map_file(file)


# --- identity --------------------------------------------------------------------------------------------------------


def identity(name: str) -> tuple[Any, ...]:
    """Changes when the file changes. The content counts as well if it is small: the clock of a file system is coarse."""
    files = _files(name)
    return tuple((str(file), _stamp(file)) for file in files)


def _stamp(file: Path) -> tuple[Any, ...]:
    with readable(file):
        facts = file.stat()
        return facts.st_mtime_ns, facts.st_size, file.read_bytes() if facts.st_size < _SMALL else b""


def digest(name: str) -> bytes:
    """A hash of the content, without the name."""
    total = hashlib.sha256()
    for path in _files(name):
        with readable(path), path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.digest()


def _files(name: str) -> list[Path]:
    path = Path(name).expanduser()
    return sorted([*path.glob("*.arrow"), *path.glob("*.parquet")]) if path.is_dir() else [path]
