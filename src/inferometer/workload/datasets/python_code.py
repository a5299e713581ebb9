"""Requests that a user's own function generates. They are generated once per run, into a file that all its processes read.

def requests(topic="rivers", seed=0):
    for number in range(100):
        yield {"prompt": f"Name {number} {topic}.", "output": 20}

The spec of a run carries a hash of the file (`generated`). A process that does not have the file, because it is on another machine,
calls the function itself, and the hash shows whether it has generated the same.
"""

import atexit
import contextlib
import importlib.util
import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec

from inferometer.config.data.datasets import PythonCode
from inferometer.errors import UserError
from inferometer.workload.datasets.files import readable
from inferometer.workload.datasets.rows import Buffer, LineRows, Rows, json_row, kind_of, map_file


def open_rows(spec: PythonCode) -> Rows:
    """The first rows that the function generates."""
    return LineRows(generated(spec), json_row)


def pinned(spec: PythonCode, seed: int) -> PythonCode:
    """The same spec with the seed, if the function takes it, and with what it has generated in a file."""
    path = Path(spec.path).expanduser()
    with _errors_in(path):
        takes_seed = "seed" in inspect.signature(_function(spec, path)).parameters
    if takes_seed and "seed" not in spec.arguments:
        spec = msgspec.structs.replace(spec, arguments=spec.arguments | {"seed": seed})
    rows = generated(spec)
    spec = msgspec.structs.replace(spec, generated=sha256(rows).hexdigest())
    file = rows_file(spec)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(descriptor, "wb") as written:
            written.write(rows)
        Path(temporary).replace(file)  # another run may write the same at the same time
    except OSError as error:
        raise UserError(
            f"{file.parent} cannot be written: {error.strerror}", "set TMPDIR to a folder with room"
        ) from None
    atexit.register(file.unlink, missing_ok=True)
    return spec


def generated(spec: PythonCode) -> Buffer:
    """What the function generates, as JSON lines."""
    if not spec.generated:
        return _generate(spec)
    with contextlib.suppress(OSError), rows_file(spec).open("rb") as file:
        rows = map_file(file)
        if sha256(rows).hexdigest() == spec.generated:
            return rows
    rows = _generate(spec)
    if sha256(rows).hexdigest() != spec.generated:
        raise UserError(
            f"{spec.path}: {spec.function} generates something else every time it is called",
            "let it depend on its arguments alone: give a random generator the argument `seed`",
            "data.function",
        )
    return rows


def rows_file(spec: PythonCode) -> Path:
    """The file with what the function has generated, on every machine that has it."""
    return Path(tempfile.gettempdir()) / f"inferometer-{spec.generated}.jsonl"


def _generate(spec: PythonCode) -> Buffer:
    """Call the function."""
    path = Path(spec.path).expanduser()
    with _errors_in(path):
        items = _call(spec, path)
        with tempfile.TemporaryFile() as file:
            for number, item in enumerate(islice(items, spec.rows)):
                file.write(_line(spec, number, item, _where(path, items)) + b"\n")
            return map_file(file)


@contextlib.contextmanager
def _errors_in(path: Path) -> Iterator[None]:
    """Turn errors in the user's code into a UserError with the line."""
    with readable(path):
        path.open("rb").close()
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _error_in(path, error) from None


def _where(path: Path, items: object) -> str:
    """The file, with the line of the latest `yield`."""
    frame = getattr(items, "gi_frame", None)
    return f"{path}, line {frame.f_lineno}" if frame is not None else str(path)


def _function(spec: PythonCode, path: Path) -> Callable[..., Any]:
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
    return cast("Callable[..., Any]", function)


def _call(spec: PythonCode, path: Path) -> Iterable[Any]:
    function = _function(spec, path)
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", 0)
    parameters = inspect.signature(function).parameters
    arguments = dict(spec.arguments)
    if "seed" in parameters and parameters["seed"].default is inspect.Parameter.empty:
        arguments = {"seed": 0} | arguments  # a run gives its own
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"{path}, line {line}: {spec.function}: {error}", "set {data.arguments}", "data.arguments"
        ) from None
    items = function(**arguments)
    if isinstance(items, str | bytes | dict) or not isinstance(items, Iterable):
        raise UserError(
            f"{path}, line {line}: {spec.function} returned {type(items).__name__}",
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


def _line(spec: PythonCode, number: int, item: Any, where: str) -> bytes:
    if isinstance(item, str):
        item = {"prompt": item}
    elif isinstance(item, list):
        item = {"messages": item}
    if not isinstance(item, dict):
        raise UserError(
            f"{where}: {spec.function} yielded {kind_of(item) if item is None else type(item).__name__} as item {number}",
            "yield a prompt, a list of messages, or a dict with the keys of a JSONL line",
            "data.function",
        )
    try:
        return msgspec.json.encode(item)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{where}: item {number} of {spec.function} cannot be written as JSON: {error}",
            "yield strings, numbers, lists and dicts",
            "data.function",
        ) from None


def _error_in(path: Path, error: BaseException) -> UserError:
    """An error in the user's code, with the line of the file where it happened."""
    own = path.resolve()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).resolve() == own]
    line = frames[-1].lineno if frames else error.lineno if isinstance(error, SyntaxError) else None
    where = f"{path}, line {line}" if line else str(path)
    return UserError(
        f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:200]}", "fix the code", "data.path"
    )
