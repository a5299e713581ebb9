"""TorchScript files: the shapes of inputs and outputs, which they do not contain, and what other files of their name are."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from inferometer.serve.backends import configured
from inferometer.serve.models.types import Loading
from inferometer.tensors import DATATYPES, TensorSpec
from inferometer.workload.fill import well_known

REMEDY = (
    "in Python, build the module, load its weights, and call torch.jit.save(torch.jit.trace(module.eval(), example), "
    "'model.pt'); or do so in a model.py (inferometer docs serve-your-model)"
)
DTYPES = {name: name.lower().replace("fp", "float").replace("bf", "bfloat") for name in DATATYPES if name != "BYTES"}
"""PyTorch's type names: int8, float16, bfloat16, ..."""
_DATATYPES = {f"torch.{dtype}": datatype for datatype, dtype in DTYPES.items()}


def is_pickled(path: Path) -> bool:
    """Whether torch.save has written the file, rather than torch.jit.save."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            return file.read(1) == b"\x80"
    with zipfile.ZipFile(path) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    return "data.pkl" in names and "constants.pkl" not in names


def declare(loading: Loading, module: Any, names: Sequence[str], device: Any) -> None:
    """Complete the configuration from the parameter `shape`, by argument: `-1,3,224,224`, or `x=-1,4;y=-1,8`."""
    kind = next((datatype_of(one) for one in module.parameters() if one.is_floating_point()), "FP32")
    try:
        named = [text.rpartition("=")[::2] for text in loading.parameter("shape").split(";")]
        shapes = {
            name or names[at]: tuple(int(size) for size in text.split(",")) for at, (name, text) in enumerate(named)
        }
        inputs = [
            TensorSpec(name, kind if well_known(name, "INT64") is None else "INT64", shape)
            for name, shape in shapes.items()
        ]
        small, large = (_results(module, inputs, size, device) for size in (1, 2))
    except Exception as error:  # of the text, or of TorchScript's interpreter
        why = " ".join(str(error).split())[-200:]
        remedy = f"write --shape {names[0]}=-1,3,224,224, for each of {', '.join(names)}; -1: any size"
        raise loading.error(f"shape {loading.parameter('shape')} does not fit the model: {why}", remedy) from None
    outputs = [
        TensorSpec(
            one.name, one.datatype, tuple(a if a == b else -1 for a, b in zip(one.shape, two.shape, strict=True))
        )
        for one, two in zip(small, large, strict=True)
    ]
    configured.complete(loading, inputs, outputs)


def _results(module: Any, inputs: Sequence[TensorSpec], size: int, device: Any) -> list[TensorSpec]:
    """The outputs for zeros, with this size of open dimensions."""
    given = {}
    for one in inputs:
        shape = [size if dim == -1 else dim for dim in one.shape]
        given[one.name] = torch.zeros(shape, dtype=getattr(torch, DTYPES[one.datatype]), device=device)
    with torch.inference_mode():
        made = module(**given)
    if not isinstance(made, dict):
        made = {f"OUTPUT__{n}": one for n, one in enumerate(made if isinstance(made, list | tuple) else [made])}
    return [TensorSpec(name, datatype_of(one), tuple(one.shape)) for name, one in made.items()]


def datatype_of(made: Any) -> str:
    """Return KServe's name for a tensor's type, or PyTorch's own if KServe has none."""
    return _DATATYPES.get(str(made.dtype), str(made.dtype))
