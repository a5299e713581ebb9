"""The Python backend: a model that is a function in a model.py.

    def infer(inputs, parameters): ...   # arrays by name, the request's parameters; returns arrays by name

The `infer` of a decoupled model is a generator of such dicts. To prepare something once, define

    def load(folder, device): ...        # returns the function; called once per instance; auto, cpu, cuda or cuda:N

CONFIG = {...} supplies what the configuration leaves open: max_batch_size, input, output, ... (all except instance_group
and the parameter process, which are needed before the file is run). Arrays have the batch dimension if the model has
one, and input arrays are read-only. BF16 is represented as float32, and BYTES as objects that are bytes. The function
runs in the instance's own thread. Anything it raises is an INTERNAL error of its batch, except for Refused.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from inferometer.errors import UserError
from inferometer.serve.backends import configured
from inferometer.serve.models.configs import explained, from_tree
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors
from inferometer.tensors import from_numpy, to_numpy

_numbers = itertools.count()


def load(loading: Loading) -> Loaded:
    path = configured.model_file(loading, "model.py")
    name = f"_inferometer_model_{next(_numbers)}"
    module = sys.modules[name] = ModuleType(name)  # dataclasses and pickle look it up there
    module.__file__ = str(path)
    configured.attempt(loading, path, "fix the file", partial(SourceFileLoader(name, str(path)).exec_module, module))
    with explained(f"model {loading.name}: CONFIG in {path.name}"):
        config = from_tree(getattr(module, "CONFIG", {}), is_strict=True)
    for field, _ in loading.config.ListFields():
        if field.name != "parameters":
            config.ClearField(field.name)
    config.MergeFrom(loading.config)
    loading.config.CopyFrom(config)
    infer = _function(loading, module, path)
    datatypes = {spec.name: spec.datatype for spec in configured.specs(loading.config.output)}
    is_decoupled = loading.config.model_transaction_policy.decoupled

    def run(inputs: Tensors, parameters: Parameters) -> Tensors | Iterator[Tensors]:
        result = infer({name: to_numpy(tensor) for name, tensor in inputs.items()}, parameters)
        if is_decoupled:
            return (_tensors(loading.name, one, datatypes) for one in result)
        return _tensors(loading.name, result, datatypes)

    return Loaded(run=run, close=partial(sys.modules.__delitem__, name))


def _function(loading: Loading, module: ModuleType, path: Path) -> Any:
    """Return `infer`, or what `load` returns."""
    infer: Any = getattr(module, "infer", None)
    if callable(prepare := getattr(module, "load", None)):
        call = partial(prepare, loading.folder or path.parent, loading.device)
        infer = configured.attempt(loading, path, "fix load()", call)
    if not callable(infer):
        remedy = "define infer(inputs, parameters) that returns a dict of arrays, or load() that returns this function"
        raise loading.error(f"{path.name} has no function infer (TritonPythonModel is not supported)", remedy)
    return infer


def _tensors(model: str, result: Any, datatypes: Mapping[str, str]) -> Tensors:
    if not isinstance(result, dict):
        what = "infer must return a dict of arrays or, if the model is decoupled, be a generator of such dicts"
        raise Refused("INTERNAL", f"model '{model}': {what} (got {type(result).__name__})")
    found: Tensors = {}
    for name, value in result.items():
        array, datatype = np.asarray(value), datatypes.get(name)
        try:
            found[name] = from_numpy(name, array, datatype)
        except UserError as error:
            what = f"output '{name}' is {datatype}, but infer returned {array.dtype}: {error.what}"
            raise Refused("INTERNAL", f"model '{model}': {what}") from None
    return found
