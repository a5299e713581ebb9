"""Helpers for all loaders: read and complete a model's configuration, import its Python file, report a missing extra.

Inputs and outputs are `TensorSpec`s without the batch dimension, as in the configuration; BYTES is TYPE_STRING there. A
loader fills in what the configuration leaves open and never changes what it states: if the file and the configuration
disagree, a UserError names both.
"""

import importlib
import importlib.util
import itertools
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from inferometer.errors import UserError
from inferometer.serve.models.configs import datatype, with_texts
from inferometer.serve.models.types import Loading, Refused
from inferometer.tensors import Tensor, TensorSpec, shown, to_numpy
from inferometer.wire import protobuf

BATCH = 4
"""Default max_batch_size for files with a dynamic first dimension; the same as Triton's."""

_LENGTH = 300
_numbers = itertools.count()

T = TypeVar("T")

# --- inputs and outputs ----------------------------------------------------------------------------------------------


def specs(fields: Any) -> list[TensorSpec]:
    """Return what config.input or config.output lists."""
    return [TensorSpec(one.name, datatype(one), tuple(one.dims)) for one in fields]


def declare(fields: Any, tensors: Sequence[TensorSpec]) -> None:
    """Add `tensors` to config.input or config.output if that is empty."""
    for spec in [] if fields else tensors:
        kind, more = spec.datatype.replace("BYTES", "STRING"), {"optional": True} if spec.optional else {}
        fields.add(name=spec.name, dims=spec.shape, data_type=f"TYPE_{kind}", **more)


def batch_by_default(loading: Loading, rows: int) -> None:
    """Enable dynamic batching up to the parameter `default_max_batch_size` or `rows`."""
    config = loading.config
    config.max_batch_size = whole(loading, "default_max_batch_size", rows)
    if config.max_batch_size and not config.WhichOneof("scheduling_choice"):
        config.dynamic_batching.SetInParent()


def complete(loading: Loading, found_inputs: Sequence[TensorSpec], found_outputs: Sequence[TensorSpec]) -> None:
    """Complete the configuration from a model file, whose shapes include the batch dimension.

    If nothing is configured and the first dimension of all tensors is dynamic, it is the batch dimension:
    max_batch_size becomes the parameter `default_max_batch_size` (4; 0: no batching), with dynamic batching.
    """
    config, everything = loading.config, (*found_inputs, *found_outputs)
    fixed = next((spec for spec in everything if spec.shape[:1] != (-1,)), None)
    if everything and fixed is None and not (config.max_batch_size or config.input or config.output):
        batch_by_default(loading, BATCH)
    if config.max_batch_size and fixed is not None:
        first = f"the first dimension of {fixed.name} {shown(fixed.shape)} is fixed"
        remedy = "set max_batch_size to 0, or export the model with a dynamic first dimension"
        raise loading.error(f"max_batch_size is {config.max_batch_size}, but {first}", remedy)
    for fields, found in ((config.input, found_inputs), (config.output, found_outputs)):
        begin = 1 if config.max_batch_size else 0
        tensors = [TensorSpec(spec.name, spec.datatype, spec.shape[begin:], spec.optional) for spec in found]
        declare(fields, tensors)
        _agree(loading, fields, tensors)


def _agree(loading: Loading, fields: Any, found: Sequence[TensorSpec]) -> None:
    by_name = {spec.name: spec for spec in found}
    for one in fields:
        spec, kind, shape = by_name.get(one.name), datatype(one), tuple(one.dims)
        if spec is None:
            what = f"the configuration has {one.name}, the model file only {', '.join(by_name)}"
            raise loading.error(what, "use the name in the model file")
        pairs = list(zip(shape, spec.shape, strict=False))
        is_same_shape = len(shape) == len(spec.shape) and all(-1 in pair or pair[0] == pair[1] for pair in pairs)
        if kind != spec.datatype or not is_same_shape:
            differs = f"{kind} {shown(shape)}, the model file {spec.datatype} {shown(spec.shape)}"
            remedy = "correct data_type and dims (without the batch dimension if max_batch_size is not 0)"
            raise loading.error(f"the configuration says that {one.name} is {differs}", remedy)


def require(loading: Loading) -> None:
    """Raise UserError unless inputs and outputs are known."""
    for kind, fields in (("input", loading.config.input), ("output", loading.config.output)):
        if not fields:
            remedy = f"list them in a config.pbtxt (or, in a model.py, in CONFIG): {kind} [{{ name, data_type, dims }}]"
            raise loading.error(f"the {kind}s are not configured", remedy)


def expect(loading: Loading, inputs: set[str], outputs: set[str]) -> None:
    """Raise UserError if the configuration lists tensors other than these."""
    for kind, known, fields in (("input", inputs, loading.config.input), ("output", outputs, loading.config.output)):
        if other := sorted({one.name for one in fields} - known):
            what = f"the configuration has the {kind} {other[0]}; this model's are {', '.join(sorted(known))}"
            raise loading.error(what, "correct or remove it")


# --- parameters ------------------------------------------------------------------------------------------------------


def whole(loading: Loading, name: str, default: int) -> int:
    """Return a parameter that is a whole number of at least 0."""
    text = loading.parameter(name, str(default)).strip()
    if not re.fullmatch(r"\d{1,9}", text):
        raise loading.error(f"parameter {name} must be a whole number of at least 0 (got {text!r:.60})")
    return int(text)


def is_on(loading: Loading, name: str, default: bool = False) -> bool:
    text = loading.parameter(name, "1" if default else "0").strip().lower()
    if text not in ("1", "0", "true", "false"):
        raise loading.error(f"parameter {name} must be 1 or 0 (got {text!r:.60})")
    return text in ("1", "true")


# --- requests --------------------------------------------------------------------------------------------------------


def texts(name: str, tensor: Tensor) -> list[str]:
    try:
        return [one.decode() for one in to_numpy(tensor).reshape(-1)]
    except UnicodeDecodeError:
        raise Refused("INVALID_ARGUMENT", f"input '{name}': an element is not valid UTF-8") from None


# --- packages and files ----------------------------------------------------------------------------------------------


def package(name: str, extra: str) -> Any:
    """Import the package `name`; raises UserError if its extra is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error.name is None or error.name.partition(".")[0] == name
        what = f"{name} is not installed" if missing else f"{name} cannot be imported: {one_line(error)}"
        raise UserError(what, f"pip install 'inferometer[{extra}]'") from None


def model_file(loading: Loading, *names: str) -> Path:
    """Return the model's file, or the first of `names` in the version folder."""
    if loading.file is not None:
        return loading.file
    folder = loading.folder
    found = [folder / name for name in names if (folder / name).is_file()] if folder is not None else []
    if not found:
        raise loading.error(f"there is no {' or '.join(names)} in {folder}", "add the file")
    return found[0]


def attempt(loading: Loading, path: Path, remedy: str, load: Callable[[], T]) -> T:
    """Call `load`; whatever a library raises about a file that fails to load becomes a UserError of one line."""
    try:
        return load()
    except UserError:
        raise
    except Exception as error:
        what = f"{path.name} failed to load: {type(error).__name__}: {one_line(error)}"
        raise loading.error(what, remedy) from None


def one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return words if len(words) <= _LENGTH else words[: _LENGTH - 3] + "..."


def python_file(loading: Loading, path: Path) -> ModuleType:
    """Import a model.py as a module of its own, once per instance."""
    name = f"_inferometer_model_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise loading.error(f"{path.name} is not a Python file", "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        what = f"{path.name} failed to load: {type(error).__name__}: {one_line(error)}{_line(error, path)}"
        raise loading.error(what, "fix the file") from None
    _add_config(loading, module, path)
    return module


def forget(module: ModuleType) -> None:
    sys.modules.pop(module.__name__, None)


def _line(error: BaseException, path: Path) -> str:
    """Return the line of the file in which the error happened."""
    frames = traceback.walk_tb(error.__traceback__)
    numbers = [number for frame, number in frames if frame.f_code.co_filename == str(path)]
    return f" (line {numbers[-1]})" if numbers else ""


def _add_config(loading: Loading, module: ModuleType, path: Path) -> None:
    """Fill in what the file's CONFIG states and the configuration leaves open."""
    stated, kind = getattr(module, "CONFIG", None), type(loading.config)
    if stated is None:
        return
    try:
        made = protobuf.parse(kind, protobuf.encode(kind, with_texts(stated) if isinstance(stated, dict) else stated))
    except UserError as error:
        raise loading.error(f"CONFIG in {path.name}: {error.what}", error.remedy) from None
    known = {field.name for field, _ in loading.config.ListFields()}
    scheduled = loading.config.WhichOneof("scheduling_choice") is not None
    for name in [name for name in made.parameters if name in loading.config.parameters]:
        del made.parameters[name]
    for field, _ in made.ListFields():
        if field.name in known - {"parameters"} or (scheduled and field.containing_oneof is not None):
            made.ClearField(field.name)
    loading.config.MergeFrom(made)
