"""Triton's generate extension: the keys of a JSON object are inputs by name, and outputs are the keys of another.

A value is a scalar or a list; the model determines its datatype and shape. Keys that are not inputs are parameters, as
are the keys in `parameters`. An output with one element is a scalar, otherwise a list.
"""

import math
from typing import Any

import msgspec

from inferometer.serve.kserve import http_codec, parameters
from inferometer.serve.kserve.http_codec import InferRequestBody
from inferometer.serve.kserve.parameters import invalid
from inferometer.serve.models.model import Model
from inferometer.serve.models.types import Output, Tensors
from inferometer.tensors import Tensor, TensorSpec

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of "
    "responses"
)


def request(body: bytes | memoryview, model: Model) -> InferRequestBody:
    tree = http_codec.parse_json(body)
    specs = {spec.name: spec for spec in model.facts.inputs}
    has_batch = model.config.max_batch_size > 0
    inputs: Tensors = {}
    others: dict[str, Any] = {}
    id_ = tree.pop("id", "") if "id" not in specs else ""
    nested = tree.pop("parameters") if "parameters" not in specs and isinstance(tree.get("parameters"), dict) else {}
    for name, value in (*tree.items(), *nested.items()):
        if name not in specs:
            others[name] = value
        elif name in inputs:
            raise invalid(f"[request id: <id_unknown>] input '{name}' already exists in request")
        else:
            inputs[name] = _tensor(specs[name], value, has_batch)
    if not isinstance(id_, str | int):
        raise invalid(f"Unable to parse 'id': expected a text, got {id_!r:.60}")
    return InferRequestBody(inputs, str(id_), parameters=parameters.check(others))


def _tensor(spec: TensorSpec, value: Any, has_batch: bool) -> Tensor:
    values = value if isinstance(value, list) else [value]
    shape = _shape(spec, sum(1 for _ in http_codec.leaves(values)), has_batch)
    return http_codec.from_values(spec.name, spec.datatype, shape, values)


def _shape(spec: TensorSpec, count: int, has_batch: bool) -> tuple[int, ...]:
    """Return the model's shape with a batch of one and the free dimension as large as required."""
    dims = list(spec.shape[1:] if has_batch else spec.shape)
    free = [i for i, size in enumerate(dims) if size < 0]
    fixed = math.prod(size for size in dims if size >= 0)
    for i in free[:-1]:
        dims[i] = 1
    if free:
        dims[free[-1]] = count // fixed if fixed else 0
    if math.prod(dims) != count:
        what = f"expected {list(spec.shape)}, got {count} values"
        raise invalid(f"The schema can not convert input '{spec.name}' to tensor with proper shape: {what}")
    return (1, *dims) if has_batch else tuple(dims)


def answer(model: str, version: str, id: str, outputs: tuple[Output, ...]) -> bytes:
    """Encode a response as JSON, preserving the order of its keys."""
    tree: dict[str, Any] = {"model_name": model, "model_version": version}
    if id:
        tree["id"] = id
    for output in outputs:
        values = http_codec.to_values(output.tensor)
        if math.prod(output.tensor.shape) == 1:
            values = msgspec.Raw(bytes(values)[1:-1])
        tree[output.tensor.name] = values
    return msgspec.json.encode(dict(sorted(tree.items())))
