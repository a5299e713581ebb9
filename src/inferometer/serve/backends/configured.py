"""Helpers for all loaders: complete a model's configuration, read its parameters, report what cannot be loaded.

Inputs and outputs are `TensorSpec`s without the batch dimension, as in the configuration; BYTES is TYPE_STRING there. A
loader fills in what the configuration leaves open and never changes what it states: if the file and the configuration
disagree, a UserError names both.
"""

import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inferometer.errors import UserError
from inferometer.serve.models.configs import datatype
from inferometer.serve.models.types import Loading, Refused, reason
from inferometer.tensors import Tensor, TensorSpec, shown, to_numpy


def specs(fields: Any) -> list[TensorSpec]:
    """Return what config.input or config.output lists."""
    return [TensorSpec(one.name, datatype(one), tuple(one.dims)) for one in fields]


def batch_by_default(loading: Loading, rows: int) -> None:
    """Enable dynamic batching up to the parameter `default_max_batch_size` or `rows`."""
    config = loading.config
    config.max_batch_size = whole(loading, "default_max_batch_size", rows)
    if config.max_batch_size and not config.WhichOneof("scheduling_choice"):
        config.dynamic_batching.SetInParent()


def complete(loading: Loading, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Complete the configuration from a model file, whose shapes include the batch dimension. If nothing is configured,
    the first dimension of all tensors is the batch dimension if it is dynamic."""
    config, everything = loading.config, (*inputs, *outputs)
    fixed = next((spec for spec in everything if spec.shape[:1] != (-1,)), None)
    if everything and fixed is None and not (config.max_batch_size or config.input or config.output):
        batch_by_default(loading, 4)  # like Triton
    if config.max_batch_size and fixed is not None:
        first = f"the first dimension of {fixed.name} {shown(fixed.shape)} is fixed"
        remedy = "set max_batch_size to 0, or export the model with a dynamic first dimension"
        raise loading.error(f"max_batch_size is {config.max_batch_size}, but {first}", remedy)
    begin = 1 if config.max_batch_size else 0
    without_batch = [TensorSpec(one.name, one.datatype, one.shape[begin:]) for one in everything]
    declare(loading, without_batch[: len(inputs)], without_batch[len(inputs) :])


def declare(loading: Loading, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Add the model's tensors to config.input and config.output if these are empty; otherwise, check that they agree."""
    for fields, tensors in ((loading.config.input, inputs), (loading.config.output, outputs)):
        if not fields:
            for spec in tensors:
                kind, more = spec.datatype.replace("BYTES", "STRING"), {"optional": True} if spec.optional else {}
                fields.add(name=spec.name, dims=spec.shape, data_type=f"TYPE_{kind}", **more)
        by_name = {spec.name: spec for spec in tensors}
        for one in specs(fields):
            if one.name not in by_name:
                what = f"the configuration has {one.name}, the model only {', '.join(by_name)}"
                raise loading.error(what, "use the names of the model")
            found = by_name[one.name]
            pairs = zip(one.shape, found.shape, strict=False)
            is_same_shape = len(one.shape) == len(found.shape) and all(a == b or -1 in (a, b) for a, b in pairs)
            if one.datatype != found.datatype or not is_same_shape:
                differs = f"{one.datatype} {shown(one.shape)}, the model {found.datatype} {shown(found.shape)}"
                remedy = "correct data_type and dims (without the batch dimension if max_batch_size is not 0)"
                raise loading.error(f"the configuration says that {one.name} is {differs}", remedy)


def whole(loading: Loading, name: str, default: int) -> int:
    """Return a parameter that is a whole number of at least 0."""
    text = loading.parameter(name, str(default)).strip()
    if not re.fullmatch(r"\d{1,9}", text):
        raise loading.error(f"parameter {name} must be a whole number of at least 0 (got {text!r:.60})")
    return int(text)


def texts(name: str, tensor: Tensor) -> list[str]:
    try:
        return [one.decode() for one in to_numpy(tensor).reshape(-1)]
    except UnicodeDecodeError:
        raise Refused("INVALID_ARGUMENT", f"input '{name}': an element is not valid UTF-8") from None


def model_file(loading: Loading, name: str) -> Path:
    """Return the model's file, which is usually called `name`."""
    if loading.file is None:
        raise loading.error(f"there is no {name} in {loading.folder}", "add the file")
    return loading.file


def attempt(loading: Loading, path: Path, remedy: str, load: Callable[[], Any]) -> Any:
    """Call `load`; whatever a library raises about a file that fails to load becomes a UserError of one line."""
    try:
        return load()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.walk_tb(error.__traceback__)
        lines = [f" (line {line})" for frame, line in frames if frame.f_code.co_filename == str(path)]
        what = f"{path.name} failed to load: {reason(error).message}{''.join(lines[-1:])}"
        raise loading.error(what, remedy) from None
