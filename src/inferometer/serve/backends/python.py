"""The Python backend: a model that is a function in a model.py.

    def infer(inputs, parameters): ...   # arrays by name, the request's parameters; returns arrays by name

The `infer` of a decoupled model is a generator of such dicts. To prepare something once, define

    def load(folder, device): ...        # returns the function; called once per instance; auto, cpu, cuda or cuda:N

Without a configuration file, CONFIG = {...} has its fields: max_batch_size, input, output, ... (all except
instance_group and the parameter process, which are needed before the file is run). Arrays have the batch dimension if
the model has one, and input arrays are read-only. BF16 is represented as float32, and BYTES as objects that are bytes, for both inputs and outputs.
The function runs in the instance's own thread. Anything it raises is an INTERNAL error of that request; to report a bad
request, raise inferometer.serve.models.types.Refused("INVALID_ARGUMENT", "...").
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from inferometer.errors import UserError
from inferometer.serve.backends import configured
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors
from inferometer.tensors import TensorSpec, from_numpy, to_numpy

Infer = Callable[[dict[str, Any], Parameters], Any]


def load(loading: Loading) -> Loaded:
    path = configured.model_file(loading, "model.py")
    module = configured.python_file(loading, path)
    configured.require(loading)
    infer = _function(loading, module, path)
    outputs = {spec.name: spec for spec in configured.specs(loading.config.output)}
    decoupled = loading.config.model_transaction_policy.decoupled

    def run(inputs: Tensors, parameters: Parameters) -> Tensors | Iterator[Tensors]:
        answer = infer({name: to_numpy(tensor) for name, tensor in inputs.items()}, parameters)
        return (_each if decoupled else _tensors)(loading.name, answer, outputs)

    return Loaded(run=run, close=lambda: configured.forget(module))


def _function(loading: Loading, module: ModuleType, path: Path) -> Infer:
    """Return `infer`, or what `load` returns."""
    prepare, infer = getattr(module, "load", None), getattr(module, "infer", None)
    if callable(prepare):
        folder = loading.folder if loading.folder is not None else path.parent
        infer = configured.attempt(loading, path, "fix load()", lambda: prepare(folder, loading.device))
        if not callable(infer):
            what = f"load() in {path.name} returned {type(infer).__name__}, not a function"
            raise loading.error(what, "return a function infer(inputs, parameters)")
    if not callable(infer):
        is_triton = hasattr(module, "TritonPythonModel")
        note = " (TritonPythonModel works only in Triton's own Python backend)" if is_triton else ""
        remedy = "define infer(inputs, parameters) that returns a dict of arrays"
        raise loading.error(f"{path.name} has no function infer{note}", remedy)
    found: Infer = infer
    return found


def _each(name: str, answers: Any, outputs: Mapping[str, TensorSpec]) -> Iterator[Tensors]:
    """Yield the responses of a decoupled model; closing this closes the model's generator."""
    if not isinstance(answers, Iterator):
        what = f"model '{name}' is decoupled, but infer returned {type(answers).__name__}, not a generator"
        raise Refused("INTERNAL", what)
    try:
        for answer in answers:
            yield _tensors(name, answer, outputs)
    finally:
        if inspect.isgenerator(answers):
            answers.close()


def _tensors(name: str, answer: Any, outputs: Mapping[str, TensorSpec]) -> Tensors:
    if not isinstance(answer, dict):
        raise Refused("INTERNAL", f"model '{name}': infer returned {type(answer).__name__}, not a dict of arrays")
    found: Tensors = {}
    for key, value in answer.items():
        if key not in outputs:
            raise Refused("INTERNAL", f"model '{name}' has no output {key!r:.60}; its outputs are {', '.join(outputs)}")
        array = np.asarray(value)
        try:
            found[key] = from_numpy(key, array, outputs[key].datatype)
        except UserError as error:
            what = f"output '{key}' is {outputs[key].datatype}, but infer returned {array.dtype}: {error.what}"
            raise Refused("INTERNAL", f"model '{name}': {what}") from None
    return found
