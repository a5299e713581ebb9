"""Requests that a user's own function generates. They are written to a temporary file of JSON lines, once per process.

def requests(topic="rivers"):
    for number in range(100):
        yield {"prompt": f"Name {number} {topic}.", "output": 20}
"""

import importlib.util
import sys
import tempfile
import traceback
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from inferometer.config.data.datasets import PythonCode
from inferometer.errors import UserError
from inferometer.workload.datasets.files import readable
from inferometer.workload.datasets.rows import Buffer, LineRows, Rows, json_row, kind_of, map_file


def open_rows(spec: PythonCode) -> Rows:
    """The first rows that the function generates."""
    return LineRows(generated(spec), json_row)


def generated(spec: PythonCode) -> Buffer:
    """What the function generates, as JSON lines."""
    path = Path(spec.path).expanduser()
    with readable(path):
        path.open("rb").close()
    try:
        items = _call(spec, path)
        with tempfile.TemporaryFile() as file:
            for number, item in enumerate(islice(items, spec.rows)):
                file.write(_line(spec, number, item) + b"\n")
            return map_file(file)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _error_in(path, error) from None


def _call(spec: PythonCode, path: Path) -> Iterable[Any]:
    module = _import(path)
    function = getattr(module, spec.function, None)
    if not callable(function):
        names = (name for name in vars(module) if not name.startswith("_"))
        own = (name for name in names if getattr(getattr(module, name), "__module__", "") == module.__name__)
        raise UserError(
            f"{path} has no function {spec.function!r}",
            f"define it, or name another with data.function; it has: {', '.join(own) or 'no functions'}",
            "data.function",
        )
    items = function(**spec.arguments)
    if isinstance(items, str | bytes | dict) or not isinstance(items, Iterable):
        raise UserError(
            f"{path}: {spec.function} returned {type(items).__name__}",
            "yield requests, or return a list",
            "data.function",
        )
    return items


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"inferometer_data_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file", "give a file whose name ends with .py", "data.path")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # it may import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _line(spec: PythonCode, number: int, item: Any) -> bytes:
    if isinstance(item, str):
        item = {"prompt": item}
    elif isinstance(item, list):
        item = {"messages": item}
    if not isinstance(item, dict):
        raise UserError(
            f"{spec.path}: {spec.function} yielded {kind_of(item) if item is None else type(item).__name__} as item {number}",
            "yield a prompt, a list of messages, or a dict with the keys of a JSONL line",
            "data.function",
        )
    try:
        return msgspec.json.encode(item)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{spec.path}: item {number} of {spec.function} cannot be written as JSON: {error}",
            "yield strings, numbers, lists and dicts",
            "data.function",
        ) from None


def _error_in(path: Path, error: BaseException) -> UserError:
    """An error in the user's code, with the line of the file where it happened."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = frames[-1].lineno if frames else error.lineno if isinstance(error, SyntaxError) else None
    where = f"{path}, line {line}" if line else str(path)
    return UserError(
        f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:200]}", "fix the code", "data.path"
    )
