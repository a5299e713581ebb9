"""PyTorch models: TorchScript (.pt) or an exported program (.pt2).

    model.pt    torch.jit.save(...)     the configuration must declare inputs and outputs
    model.pt2   torch.export.save(...)  declares them itself

Inputs are passed as arguments: in numeric order if all are named like Triton's INPUT__0, by name if all are named like
the arguments of `forward`, otherwise in the configuration's order. The result is a tensor, a tuple or list of tensors
in the configuration's order, or a dict by output name. Pickles are not loaded, because they can run anything.
Parameters: `threads` (per operation, on CPUs), `default_max_batch_size` (for an exported program with a dynamic first
dimension).
"""

import io
import json
import logging
import re
import threading
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.export.passes import move_to_device_pass

from inferometer import tensors
from inferometer.serve.backends import configured
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors
from inferometer.tensors import Tensor, TensorSpec, shown

DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "BF16": "bfloat16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip
"""PyTorch's type names; it has no type for BYTES."""
_UNSIGNED = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_DATATYPES = {f"torch.{dtype}": datatype for datatype, dtype in DTYPES.items()}
_threads = threading.local()
OWN_THREADS = torch.get_num_threads()
"""The number of threads that PyTorch chose by default."""
_NUMBERED = re.compile(r".*__(\d+)")
_IN_PLACE = re.compile(r"aten::\w*[a-z0-9]_\(")
_LAST_FRAME = "<--- HERE\n"
_PT2_REMEDY = "save it with torch.export.save, with plain tensors as weights and inputs"
_PT2_COMPILED = ("data/aotinductor/", "data/executorch/", "data/mtia/")
_PT2_PAYLOADS = ("data/weights/", "data/constants/")


class _Module(msgspec.Struct):
    """A loaded module, ready to be called."""

    call: Any
    arguments: tuple[str, ...]
    """Argument names of `forward` in order."""
    keywords: frozenset[str]
    """Arguments that are passed by name."""
    writes: bool
    """Whether it may write to its inputs, which are copied then."""


def load(loading: Loading) -> Loaded:
    device = device_of(loading)
    threads = configured.whole(loading, "threads", 0)
    module = _read(loading, configured.model_file(loading, "model.pt or model.pt2"), device)
    inputs, outputs = configured.specs(loading.config.input), configured.specs(loading.config.output)
    for spec in (*inputs, *outputs):
        if spec.datatype not in DTYPES:
            what = f"{spec.name} is {spec.datatype}, which PyTorch does not support"
            raise loading.error(what, f"supported types: {', '.join(DTYPES)}")
    order = _order(loading, module, [spec.name for spec in inputs])
    positional = [name for name, argument in order.items() if argument not in module.keywords]
    by_keyword = {name: argument for name, argument in order.items() if argument in module.keywords}

    def run(given: Tensors, parameters: Parameters) -> Tensors:
        use_threads(threads)
        with torch.inference_mode():
            made = {name: to_torch(tensor, device, module.writes) for name, tensor in given.items()}
            keywords = {argument: made[name] for name, argument in by_keyword.items() if name in made}
            result = _called(module, [made[name] for name in positional if name in made], keywords)
            found = _outputs(loading.name, result, outputs)
            return {spec.name: from_torch(spec.name, one) for spec, one in zip(outputs, found, strict=False)}

    return Loaded(run=run)


# --- files -----------------------------------------------------------------------------------------------------------


def _read(loading: Loading, path: Path, device: Any) -> _Module:
    exported = path.suffix == ".pt2"
    remedy = "save it with torch.export.save" if exported else "save it with torch.jit.save; pickles are not loaded"
    if not zipfile.is_zipfile(path):
        raise loading.error(f"{path.name} is not a PyTorch file, or is damaged", remedy)
    read = _exported if exported else _script
    logging.getLogger("torch.export").disabled = True  # it logs a traceback before it raises
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return configured.attempt(loading, path, remedy, lambda: read(loading, path, device))


def _script(loading: Loading, path: Path, device: Any) -> _Module:
    module = torch.jit.load(str(path), map_location=device).eval()
    names = tuple(one.name for one in module.forward.schema.arguments[1:])
    if not loading.config.input:
        what = f"a TorchScript file does not contain the shapes and types of {', '.join(names)}"
        raise loading.error(what, "list input and output in a config.pbtxt, or export the model as .pt2")
    writes = _IN_PLACE.search(str(module.inlined_graph)) is not None
    return _Module(module, names, keywords=frozenset(names), writes=writes)


def _check_archive(loading: Loading, path: Path) -> None:
    """Raise UserError if the archive of an exported program contains anything that could run code.

    PyTorch unpickles any pickles that it finds in a .pt2 and loads compiled code; both can run anything. Plain exported
    programs contain neither: weights and constants are raw bytes, and the sample inputs are tensors, which can be read
    without running code. Anything else in the archive is refused.
    """
    with zipfile.ZipFile(path) as archive:
        full = archive.namelist()
        inner = {one.partition("/")[2]: one for one in full}  # all are in one folder, named like the file
        if "models/model.json" not in inner or len(inner) != len(full):
            raise loading.error(f"{path.name} is not an exported program, or has an outdated format", _PT2_REMEDY)
        for short, one in inner.items():
            if _can_run_code(short, archive, one):
                what = f"{path.name} was not loaded for safety: {short[:80]} could run anything"
                raise loading.error(what, _PT2_REMEDY)


def _can_run_code(name: str, archive: zipfile.ZipFile, member: str) -> bool:
    if name.startswith(_PT2_PAYLOADS) and name.endswith(".json"):
        payloads = json.loads(archive.read(member))["config"].values()
        return any(one["use_pickle"] or one["path_name"].startswith("opaque") for one in payloads)
    if name.startswith("data/sample_inputs/"):
        try:
            torch.load(io.BytesIO(archive.read(member)), weights_only=True)
        except Exception:
            return True
    return name.startswith(_PT2_COMPILED) or (name.startswith(_PT2_PAYLOADS) and name.endswith(".pt"))


def _exported(loading: Loading, path: Path, device: Any) -> _Module:
    _check_archive(loading, path)
    program = torch.export.load(str(path))
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    signature, spec = program.graph_signature, program.call_spec.in_spec
    nodes = tuple(map(str, signature.user_inputs))
    positional, keywords = spec.children()
    if spec.num_leaves != positional.num_children + keywords.num_children:
        raise loading.error(f"{path.name} takes lists or dicts of tensors", "export it with plain arguments")
    by_keyword = tuple(map(str, keywords.context or ()))
    arguments = nodes[: positional.num_children] + by_keyword
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    made, count = program.call_spec.out_spec, len(signature.user_outputs)
    is_dict = made.type is dict and made.num_children == count
    results = [str(key) for key in made.context] if is_dict else [f"OUTPUT__{i}" for i in range(count)]
    configured.complete(
        loading,
        [_spec(loading, name, values.get(node)) for name, node in zip(arguments, nodes, strict=True)],
        [
            _spec(loading, name, values.get(str(node)))
            for name, node in zip(results, signature.user_outputs, strict=True)
        ],
    )
    writes = bool(signature.user_inputs_to_mutate)
    return _Module(program.module(), arguments, keywords=frozenset(by_keyword), writes=writes)


def _spec(loading: Loading, name: str, value: Any) -> TensorSpec:
    if not hasattr(value, "dtype"):
        raise loading.error(f"{name} of the exported program is not a tensor", "export it with tensors only")
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorSpec(name, datatype_of(value), shape)


# --- arguments and results -------------------------------------------------------------------------------------------


def _order(loading: Loading, module: _Module, names: list[str]) -> dict[str, str]:
    """Return the argument for each input, in the order of the arguments."""
    taken = module.arguments
    if len(names) > len(taken):
        what = f"the configuration lists {len(names)} inputs, but forward takes {len(taken)}: {', '.join(taken)}"
        raise loading.error(what, "list one input per argument")
    if set(names) <= set(taken):
        return {name: name for name in taken if name in names}
    if all(_NUMBERED.fullmatch(name) for name in names):
        names = sorted(names, key=lambda name: int(name.rpartition("__")[2]))
    return dict(zip(names, taken, strict=False))


def _called(module: _Module, positional: list[Any], keywords: dict[str, Any]) -> Any:
    """Call the module; of TorchScript's errors, clients get the cause, but not the source locations before it."""
    try:
        return module.call(*positional, **keywords)
    except Exception as error:
        _, found, why = str(error).rpartition(_LAST_FRAME)
        if not found:
            raise
        raise Refused("INTERNAL", " ".join(why.split())) from None


def _outputs(name: str, result: Any, outputs: Sequence[TensorSpec]) -> list[Any]:
    """Return the response's tensors in the order of the configured outputs."""
    if isinstance(result, dict):
        named = all(spec.name in result for spec in outputs)
        found = [result[spec.name] for spec in outputs] if named else list(result.values())
    else:
        found = list(result) if isinstance(result, list | tuple) else [result]
    for spec, one in zip(outputs, found, strict=False):
        if not isinstance(one, torch.Tensor):
            raise Refused("INTERNAL", f"model '{name}': output '{spec.name}' is {type(one).__name__}, not a tensor")
        if datatype_of(one) != spec.datatype:
            what = f"model '{name}': output '{spec.name}' is {datatype_of(one)} {shown(tuple(one.shape))}"
            raise Refused("INTERNAL", f"{what}, the configuration says {spec.datatype}")
    return found


# --- what every model on PyTorch needs -------------------------------------------------------------------------------


def device_of(loading: Loading) -> Any:
    """Return the requested device; `auto` is the GPU if there is one."""
    warnings.filterwarnings("ignore", message="The given buffer is not writable")  # inputs are never written to
    kind, number = configured.device(loading)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "auto":
        kind = "cuda" if count else "cpu"
    if kind == "cuda" and (number or 0) >= count:
        raise loading.error(f"device {loading.device} was requested, but PyTorch sees {count} GPUs", "use --device cpu")
    return torch.device(kind if number is None else f"{kind}:{number}")


def use_threads(count: int) -> None:
    """Set the number of threads per operation; 0: PyTorch's own default at startup. PyTorch stores the number per calling
    thread, and a new thread inherits the number that was set last in any thread."""
    wanted = count or OWN_THREADS
    if getattr(_threads, "count", 0) != wanted:
        torch.set_num_threads(wanted)
        _threads.count = wanted


def to_torch(tensor: Tensor, device: Any, copy: bool = False) -> Any:
    """Convert a tensor. With `copy`, the model may write to it."""
    dtype = getattr(torch, DTYPES[tensor.datatype])
    if not len(tensor.data):
        return torch.empty(tensor.shape, dtype=dtype, device=device)
    array = np.frombuffer(tensor.data, _UNSIGNED[tensors.DATATYPES[tensor.datatype].size])
    if tensor.datatype == "BOOL":
        made = torch.from_numpy(array != 0)  # any byte other than 0 is true
    elif copy or not array.flags.aligned:
        made = torch.from_numpy(array.copy()).view(dtype)
    else:
        made = torch.frombuffer(tensor.data, dtype=dtype)
    return made.reshape(tensor.shape).to(device)


def from_torch(name: str, made: Any) -> Tensor:
    made = made.detach().cpu().contiguous()
    raw = made.reshape(-1).view(torch.uint8).numpy() if made.numel() else np.empty(0, np.uint8)
    return Tensor(name, datatype_of(made), tuple(made.shape), raw.data)


def datatype_of(made: Any) -> str:
    """Return KServe's name for a tensor's type, or PyTorch's own if KServe has none."""
    return _DATATYPES.get(str(made.dtype), str(made.dtype))
