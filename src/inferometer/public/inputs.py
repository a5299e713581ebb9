"""Inputs of models as Python code has them (arrays, lists, PyTorch tensors): as tensors, and as the file that a run sends."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from inferometer.errors import UserError
from inferometer.tensors import Tensor, from_numpy


def tensor_of(name: str, value: Any, datatype: str | None = None) -> Tensor:
    """The value as a tensor of this datatype, or of its own. Raises UserError if there is none."""
    if hasattr(value, "detach"):  # of PyTorch, perhaps on a GPU
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UserError(f"tensor {name}: {error}", "give an array, or lists of the same length") from None
    if array.dtype.name == "bfloat16":  # of the package ml_dtypes, which numpy can carry but not convert
        return Tensor(name, "BF16", array.shape, np.ascontiguousarray(array).view("<u2").tobytes())
    return from_numpy(name, array, datatype)


@contextlib.contextmanager
def sent(inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> Iterator[dict[str, Any]]:
    """The settings of a run that sends these inputs in turn, from a file that exists during the block."""
    if inputs is None:
        yield {}
        return
    requests = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not requests or not all(isinstance(request, Mapping) for request in requests):
        raise UserError("inputs must be a dict of arrays by name, or a list of them", 'write inputs=[{"x": array}]')
    made = [[tensor_of(*pair) for pair in request.items()] for request in requests]
    entries = [
        {one.name: {"content": {"b64": one.data}, "shape": one.shape, "datatype": one.datatype} for one in tensors}
        for tensors in made
    ]
    with tempfile.NamedTemporaryFile(prefix="inferometer-inputs-", suffix=".json") as file:
        file.write(msgspec.json.encode({"data": entries}))
        file.flush()
        yield {"data": {"type": "tensors", "fill": f"@{file.name}"}}
