"""PyTorch models: TorchScript (.pt, .pth) or an exported program (.pt2).

    model.pt    torch.jit.save(...)     the configuration must declare inputs and outputs, or the parameter `shape` the inputs
    model.pt2   torch.export.save(...)  declares them itself

The result of a model is a tensor, a tuple or list of tensors in the configuration's order, or a dict by output name.
Pickles are not loaded, because they can run anything. Parameters: `threads` (per operation, on CPUs),
`default_max_batch_size` (for an exported program with a dynamic first dimension).
"""

import io
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export.passes import move_to_device_pass

from inferometer.serve.backends import configured, torchscript
from inferometer.serve.backends.torchscript import DTYPES, datatype_of
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors
from inferometer.tensors import Tensor, TensorSpec, shown, to_numpy

OWN_THREADS = torch.get_num_threads()
"""The number of threads that PyTorch chose by default."""
_NUMBERED = re.compile(r".*__(\d+)")
_PLAIN = re.compile(
    r"archive_\w+|byteorder|\.data/\w+|extra/.*|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
)
"""What the archive of an exported program contains, unless it has pickled objects or compiled code."""


def load(loading: Loading) -> Loaded:
    device, threads = device_of(loading), configured.whole(loading, "threads", 0)
    call, positional, keywords = _read(loading, configured.model_file(loading, "model.pt or model.pt2"), device)
    arguments, outputs = _arguments(loading, (*positional, *keywords)), configured.specs(loading.config.output)
    is_copied = device.type == "cpu"  # because the model may write to its inputs

    def run(inputs: Tensors, parameters: Parameters) -> Tensors:
        use_threads(threads)
        with torch.inference_mode():
            given = {arguments[name]: to_torch(tensor, device, is_copied) for name, tensor in inputs.items()}
            first = [given.pop(name) for name in positional if name in given]
            return _outputs(loading.name, call(*first, **given), outputs)

    return Loaded(run=run)


def _read(loading: Loading, path: Path, device: Any) -> Any:
    """Return the module, its arguments, and further arguments that are passed by name."""
    read, remedy = _script, "save it with torch.jit.save"
    if path.suffix == ".pt2":
        read, remedy = _exported, "save it with torch.export.save, with plain tensors as weights, inputs and outputs"
    logging.getLogger("torch.export").disabled = True  # it logs a traceback before it raises
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return configured.attempt(loading, path, remedy, lambda: read(loading, path, device))


def _script(loading: Loading, path: Path, device: Any) -> tuple[Any, Sequence[str], Sequence[str]]:
    if torchscript.is_pickled(path):
        what = "has weights or a pickled module (torch.save); the one has no code, and the other can run any"
        raise loading.error(f"{path.name} {what}", torchscript.REMEDY)
    module = torch.jit.load(str(path), map_location=device).eval()
    names = tuple(one.name for one in module.forward.schema.arguments[1:])
    if loading.config.input:
        return module, (), names
    if not loading.parameter("shape"):
        what = f"a TorchScript file does not contain the shapes and types of {', '.join(names)}"
        remedy = "give --shape -1,3,224,224 (-1: any size), list input and output in a config.pbtxt, or export the model as .pt2"
        raise loading.error(what, remedy)
    torchscript.declare(loading, module, names, device)
    return module, (), names


def _exported(loading: Loading, path: Path, device: Any) -> tuple[Any, Sequence[str], Sequence[str]]:
    _check_archive(path)
    program = torch.export.load(str(path))
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    signature, made = program.graph_signature, program.call_spec.out_spec
    positional, keywords = program.call_spec.in_spec.children()
    first, by_name = tuple(signature.user_inputs[: positional.num_children]), tuple(keywords.context or ())
    results = made.context if made.type is dict else [f"OUTPUT__{i}" for i in range(len(signature.user_outputs))]
    inputs = _specs(program, (*first, *by_name), signature.user_inputs)
    configured.complete(loading, inputs, _specs(program, results, signature.user_outputs))
    return program.module(), first, by_name


def _specs(program: Any, names: Sequence[str], nodes: Sequence[str]) -> list[TensorSpec]:
    """Return what an exported program knows about some of its tensors."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    shapes = [tuple(size if isinstance(size, int) else -1 for size in values[node].shape) for node in nodes]
    kinds = [datatype_of(values[node]) for node in nodes]
    return [TensorSpec(*spec) for spec in zip(names, kinds, shapes, strict=True)]


def _check_archive(path: Path) -> None:
    """Raise an error if an exported program contains compiled code or pickles, which PyTorch would load and which can
    run anything. Plain ones contain neither: weights and constants are raw bytes, and the sample inputs are tensors."""
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2]: name for name in archive.namelist()}  # all are in one folder
        unknown = [name for inner, name in names.items() if not _PLAIN.fullmatch(inner)]
        configs = [json.loads(archive.read(name)) for name in names.values() if name.endswith("_config.json")]
        is_pickled = any(payload["use_pickle"] for config in configs for payload in config["config"].values())
        if unknown or is_pickled or len(names) < len(archive.namelist()):
            raise ValueError(f"{(unknown or ['one of its tensors'])[0]:.80} is not plain data and could run anything")
        samples = archive.read(names["data/sample_inputs/model.pt"])
        torch.load(io.BytesIO(samples), weights_only=True)  # raises unless they are tensors


def _arguments(loading: Loading, arguments: Sequence[str]) -> dict[str, str]:
    """Return the argument for each configured input: the one of the same name if all are named like arguments, the one
    with its number if all are named like Triton's INPUT__0, otherwise the one at its place in the configuration."""
    names = [one.name for one in loading.config.input]
    if len(names) > len(arguments):
        what = f"the configuration lists {len(names)} inputs, but forward takes only {', '.join(arguments)}"
        raise loading.error(what, "list one input per argument")
    if set(names) <= set(arguments):
        return {name: name for name in names}
    if all(_NUMBERED.fullmatch(name) for name in names):
        names.sort(key=lambda name: int(name.rpartition("__")[2]))
    return dict(zip(names, arguments, strict=False))


def _outputs(model: str, result: Any, outputs: Sequence[TensorSpec]) -> Tensors:
    """Return the tensors of a result by the names of the configured outputs."""
    if not isinstance(result, dict):
        values = result if isinstance(result, list | tuple) else [result]
        result = {spec.name: value for spec, value in zip(outputs, values, strict=False)}
    made = {spec.name: from_torch(spec.name, result[spec.name]) for spec in outputs if spec.name in result}
    for spec in outputs:
        if spec.name in made and (found := made[spec.name]).datatype != spec.datatype:
            what = f"model '{model}': output '{spec.name}' is {found.datatype} {shown(found.shape)}"
            raise Refused("INTERNAL", f"{what}, the configuration says {spec.datatype}")
    return made


def device_of(loading: Loading) -> Any:
    """Return the requested device; `auto` is the GPU if there is one."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # inputs are never written to
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device(loading.device if loading.device != "auto" else "cuda" if count else "cpu")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise loading.error(f"device {loading.device} was requested, but PyTorch sees {count} GPUs", "use --device cpu")
    return device


def use_threads(count: int) -> None:
    """Set the number of threads per operation; 0: PyTorch's own default. PyTorch stores the number per calling thread, and
    a new thread inherits the number that was set last in any thread."""
    if torch.get_num_threads() != (count or OWN_THREADS):
        torch.set_num_threads(count or OWN_THREADS)


def to_torch(tensor: Tensor, device: Any, copy: bool = False) -> Any:
    """Convert a tensor. With `copy`, the model may write to it."""
    array = to_numpy(tensor)
    if copy or not array.flags.aligned:
        array = array.copy()
    return torch.from_numpy(array).to(device, getattr(torch, DTYPES[tensor.datatype]))


def from_torch(name: str, made: Any) -> Tensor:
    made = made.detach().cpu().contiguous()
    raw = made.reshape(-1).view(torch.uint8).numpy() if made.numel() else np.empty(0, np.uint8)
    return Tensor(name, datatype_of(made), tuple(made.shape), raw.data)
