"""The Python backend: a model that is a function in a model.py.

    def infer(inputs, parameters): ...   # arrays by name, the request's parameters; returns arrays by name

The `infer` of a decoupled model is a generator of such dicts. To prepare something once, define

    def load(folder, device): ...        # returns the function; called once per instance; auto, cpu, cuda or cuda:N

Without a configuration file, CONFIG = {...} has its fields: max_batch_size, input, output, ... (all except
instance_group and the parameter process, which are needed before the file is run). Arrays have the batch dimension if
the model has one, and input arrays are read-only. BF16 is represented as float32, and BYTES as objects that are bytes,
for both inputs and outputs. The function runs in the instance's own thread. Anything it raises is an INTERNAL error of
its batch; to report a bad request, raise inferometer.serve.models.types.Refused("INVALID_ARGUMENT", "...").
"""

import contextlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from inferometer.errors import UserError
from inferometer.serve.backends import configured
from inferometer.serve.models.configs import from_tree
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors
from inferometer.tensors import TensorSpec, from_numpy, to_numpy

Infer = Callable[[dict[str, Any], Parameters], Any]
_numbers = itertools.count()


def load(loading: Loading) -> Loaded:
    path = configured.model_file(loading, "model.py")
    name = f"_inferometer_model_{next(_numbers)}"
    with contextlib.ExitStack() as failed:  # clients may try to load a file that fails again and again
        failed.callback(sys.modules.pop, name, None)
        module = _imported(loading, name, path)
        _add_config(loading, module, path)
        infer = _function(loading, module, path)
        close = failed.pop_all().close
    outputs = {spec.name: spec for spec in configured.specs(loading.config.output)}
    decoupled = loading.config.model_transaction_policy.decoupled

    def run(inputs: Tensors, parameters: Parameters) -> Tensors | Iterator[Tensors]:
        result = infer({name: to_numpy(tensor) for name, tensor in inputs.items()}, parameters)
        return (_each if decoupled else _tensors)(loading.name, result, outputs)

    return Loaded(run=run, close=close)


def _imported(loading: Loading, name: str, path: Path) -> ModuleType:
    """Import the file as a module of its own, once per instance."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise loading.error(f"{path.name} is not a Python file", "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    configured.attempt(loading, path, "fix the file", partial(spec.loader.exec_module, module))
    return module


def _add_config(loading: Loading, module: ModuleType, path: Path) -> None:
    """Fill in what the file's CONFIG states and the configuration leaves open."""
    config = loading.config
    try:
        made = from_tree(getattr(module, "CONFIG", {}), where=f"CONFIG in {path.name}", is_strict=True)
    except UserError as error:
        raise loading.error(error.what, error.remedy) from None
    for name in [name for name in made.parameters if name in config.parameters]:
        del made.parameters[name]
    stated_before = {field.name for field, _ in config.ListFields()} - {"parameters"}
    is_scheduled = config.WhichOneof("scheduling_choice") is not None
    for field, _ in made.ListFields():
        if field.name in stated_before or (is_scheduled and field.containing_oneof is not None):
            made.ClearField(field.name)
    config.MergeFrom(made)


def _function(loading: Loading, module: ModuleType, path: Path) -> Infer:
    """Return `infer`, or what `load` returns."""
    infer: Any = getattr(module, "infer", None)
    if callable(prepare := getattr(module, "load", None)):
        folder = loading.folder if loading.folder is not None else path.parent
        infer = configured.attempt(loading, path, "fix load()", lambda: prepare(folder, loading.device))
    if not callable(infer):
        remedy = "define infer(inputs, parameters) that returns a dict of arrays, or load() that returns this function"
        if hasattr(module, "TritonPythonModel"):
            remedy += "; TritonPythonModel works only in Triton's own Python backend"
        raise loading.error(f"{path.name} has no function infer", remedy)
    found: Infer = infer
    return found


def _each(name: str, results: Any, outputs: Mapping[str, TensorSpec]) -> Iterator[Tensors]:
    """Yield the responses of a decoupled model; closing this closes the model's generator."""
    if not isinstance(results, Iterator):
        what = f"model '{name}' is decoupled, but infer returned {type(results).__name__}, not a generator"
        raise Refused("INTERNAL", what)
    try:
        for result in results:
            yield _tensors(name, result, outputs)
    finally:
        if close := getattr(results, "close", None):
            close()


def _tensors(name: str, result: Any, outputs: Mapping[str, TensorSpec]) -> Tensors:
    if not isinstance(result, dict):
        raise Refused("INTERNAL", f"model '{name}': infer returned {type(result).__name__}, not a dict of arrays")
    found: Tensors = {}
    for key, value in result.items():
        if key not in outputs:
            raise Refused("INTERNAL", f"model '{name}' has no output {key!r:.60}; its outputs are {', '.join(outputs)}")
        array = np.asarray(value)
        try:
            found[key] = from_numpy(key, array, outputs[key].datatype)
        except UserError as error:
            what = f"output '{key}' is {outputs[key].datatype}, but infer returned {array.dtype}: {error.what}"
            raise Refused("INTERNAL", f"model '{name}': {what}") from None
    return found
