"""`inferometer.dummy_inputs`: one dummy input or many for a model, as numpy arrays or PyTorch tensors."""

import importlib
import secrets
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

import msgspec
import numpy as np

from inferometer.config.data import TensorInput, Tensors
from inferometer.config.data.tensors import Fill
from inferometer.config.lengths import Length
from inferometer.dummies.signatures import Signature, signature_of
from inferometer.errors import UserError
from inferometer.tensors import Tensor, TensorSpec, misfit, to_numpy
from inferometer.workload import tensors

Inputs = dict[str, Any]
"""The inputs of a model by name."""


def dummy_inputs(
    source: Any,
    *,
    count: int | None = None,
    model: str | None = None,
    names: Sequence[str] | None = None,
    batch: int = 1,
    length: int | Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    datatypes: Mapping[str, str] | None = None,
    fill: str | Mapping[str, Any] = "random",
    seed: int | None = None,
    as_: Literal["numpy", "torch"] = "numpy",
    device: str = "cpu",
) -> Inputs | list[Inputs]:
    """Make inputs that a model takes, without knowing more than its signature.

    `source` is the model: the URL of a KServe v2 server (with `model`), its metadata as a dict, the path of an .onnx or a
    TorchScript file, the path of a folder with a Hugging Face model, an ONNX Runtime session, an ONNX ModelProto, or a torch
    module, of which those of Hugging Face say most about their inputs.

    `count`      how many to make: None returns one dict of inputs by name, a number a list of that many
    `names`      the inputs to make (default: all that are required)
    `batch`      size of the batch dimension
    `length`     size of the other open dimensions, such as the sequence length: a number, or a distribution as in the config
    `shapes`     full shapes by name, including the batch
    `datatypes`  KServe datatypes by name, such as {"x": "FP16"}; for torch modules, which do not say them
    `fill`       as `data.fill` in the config: random, zeros, ones, or a mapping by input
    `seed`       the same seed gives the same inputs (default: other ones with every call)
    `as_`        numpy arrays or torch tensors, the latter on `device`: cpu, cuda, cuda:1 ...

    Random inputs differ from one another, and inputs of language models are filled by name (input_ids below 1000, or within the
    vocabulary if it is known; attention_mask 1, token_type_ids 0). Raises UserError when something does not fit the model.
    """
    shapes, datatypes = shapes or {}, datatypes or {}
    _check("names", names, not isinstance(names, str), '["input_ids"]')
    _check("shapes", shapes, _is_by_name(shapes, list | tuple), '{"x": [1, 3, 224, 224]}')
    _check("datatypes", datatypes, _is_by_name(datatypes, str), '{"x": "FP16"}')
    _check("batch", batch, isinstance(batch, Integral), "2")
    _check("count", count, isinstance(count, Integral | None), "10")
    signature = signature_of(source, model, names, shapes)
    spec = _completed(signature, batch, length, shapes, datatypes, fill)
    if as_ not in ("numpy", "torch"):
        raise UserError(f"dummy_inputs: as_ is {as_!r}", "use numpy or torch")
    if as_ == "numpy" and device != "cpu":
        raise UserError("dummy_inputs: numpy arrays cannot be on a device", 'give as_="torch"')
    convert = _to_torch if as_ == "torch" else _to_array
    seed = secrets.randbits(63) if seed is None else seed
    made = [
        {one.name: convert(one, device) for one in payload}
        for payload in tensors.payloads(spec, seed, range(count or 1))
    ]
    return made[0] if count is None else made[:count]


def _check(argument: str, given: object, is_right: bool, example: str) -> None:
    if not is_right:
        raise UserError(f"dummy_inputs: {argument} is {given!r:.60}", f"write it as {argument}={example}")


def _is_by_name(given: object, kind: Any) -> bool:
    return isinstance(given, Mapping) and all(isinstance(value, kind) for value in given.values())


def _completed(
    signature: Signature,
    batch: int,
    length: int | Mapping[str, Any] | None,
    shapes: Mapping[str, Sequence[int]],
    datatypes: Mapping[str, str],
    fill: str | Mapping[str, Any],
) -> Tensors:
    """The data section that describes the inputs."""
    for argument, by_name in (("datatypes", datatypes), ("shapes", shapes)):
        if unknown := sorted(by_name.keys() - {one.name for one in signature.inputs}):
            raise UserError(f"dummy_inputs: {argument}: the model has no input {unknown[0]}", "leave it out")
    known = [_chosen(one, shapes, datatypes) for one in signature.inputs]
    open_batch = any(one.shape and one.shape[0] == -1 for one in known)
    if batch > 1 and not signature.max_batch and not open_batch:
        raise UserError(
            f"dummy_inputs: batch is {batch}, but the first dimension of every input is fixed", "leave it out"
        )
    try:
        wanted = msgspec.convert(fill, Fill)
        if signature.fills and wanted == "random":
            wanted = {}
        if isinstance(wanted, dict):
            wanted = dict(signature.fills) | wanted
        spec = Tensors(
            fill=wanted,
            length=msgspec.convert(length, Length | None),
            batch=int(batch),
            inputs=[TensorInput(one.name, one.datatype, list(one.shape)) for one in known],
        )
    except msgspec.ValidationError as error:
        raise UserError(f"dummy_inputs: {error}", "see `inferometer docs config`, data: {type: tensors}") from None
    return tensors.complete(spec, known, signature.max_batch or (batch if batch > 1 else 0))


def _chosen(one: TensorSpec, shapes: Mapping[str, Sequence[int]], datatypes: Mapping[str, str]) -> TensorSpec:
    """The input with the shape and the datatype that the caller gives for it."""
    shape = tuple(shapes.get(one.name, one.shape))
    if one.name in shapes and (problem := misfit(Tensor(one.name, one.datatype, shape, b""), one)):
        raise UserError(f"dummy_inputs: shapes: {problem}", "give every dimension, including the batch")
    return TensorSpec(one.name, datatypes.get(one.name, one.datatype), shape)


def _to_array(tensor: Tensor, device: str) -> Any:
    """A numpy array that may be written to. BF16, which numpy does not have, is float32; BYTES are objects."""
    return np.array(to_numpy(tensor))


def _to_torch(tensor: Tensor, device: str) -> Any:
    try:
        torch = importlib.import_module("torch")  # an extra
    except ImportError:
        raise UserError(
            'dummy_inputs: as_="torch" needs PyTorch, which is not installed', "pip install 'inferometer[torch]'"
        ) from None
    if tensor.datatype == "BYTES":
        raise UserError(f"dummy_inputs: {tensor.name} is BYTES, which PyTorch does not have", 'give as_="numpy"')
    if tensor.datatype == "BF16":
        bits = np.frombuffer(tensor.data, "<i2").reshape(tensor.shape).copy()
        made = torch.from_numpy(bits).view(torch.bfloat16)
    else:
        made = torch.from_numpy(np.array(to_numpy(tensor)))
    try:
        return made.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"dummy_inputs: the device {device} cannot be used: {reason}", "use cpu or cuda:N") from None
