"""Images for a model that takes them, one or a batch per request, exactly as `infer --image` sends them.

`complete` finds the input that the images are for. Other inputs that the model needs are generated (fill.py).
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil

import msgspec

from inferometer import tensors
from inferometer.config.data import Images, TensorInput, Tensors
from inferometer.config.data.tensors import Size
from inferometer.errors import UserError
from inferometer.tensors import Tensor, TensorSpec
from inferometer.types import Request
from inferometer.workload import fill, image_tensors, input_files
from inferometer.workload import tensors as tensor_data
from inferometer.workload.image_tensors import Preparation

_ROOM = 1 << 30
"""Maximum total size in bytes of the distinct requests of a run, which are all built before t=0."""


def complete(
    spec: Images,
    metadata: Sequence[TensorSpec],
    max_batch: int,
    formats: Mapping[str, str],
    in_grpc_message: bool = False,
    as_json: bool = False,
) -> Images:
    """Return the spec with the model's inputs, and the name of the one for the image.

    `formats` are those of the model's configuration (FORMAT_NCHW ...). Raises UserError when the spec does not fit the model.
    """
    preparation_of(spec)
    known = [TensorSpec(one.name, one.datatype, tuple(one.shape)) for one in spec.inputs] or list(metadata)
    by_name = {one.name: one for one in known}
    if spec.input is not None and spec.input not in by_name:
        raise fill.no_input(spec.input, list(by_name), "data.input")
    filled = spec.fill if isinstance(spec.fill, dict) else {}
    left = [one for one in known if one.name not in filled] if spec.input is None else [by_name[spec.input]]
    optional = {one.name for one in known if one.optional}
    chosen = image_tensors.input_for(left, known, formats, optional)
    tensor_data.check_batch(spec.batch, max_batch)
    shape = spec.shape.get(chosen.name, list(chosen.shape))
    for_image = TensorInput(name=chosen.name, datatype=chosen.datatype, shape=shape)
    layout = spec.layout or formats.get(chosen.name, "").removeprefix("FORMAT_")
    others = [one for one in known if one.name != chosen.name and (not one.optional or one.name in filled)]
    inputs = {one.name: one for one in (for_image, *_others(spec, others, chosen.name, max_batch))}
    full = msgspec.structs.replace(
        spec,
        input=chosen.name,
        inputs=[inputs[one.name] for one in known if one.name in inputs],
        layout=layout if layout in ("NCHW", "NHWC") else None,
    )
    payload = _payload(full, 0, 0)
    image = next(one for one in payload if one.name == chosen.name)
    if problem := tensors.misfit(image, chosen):
        raise UserError(f"{spec.path}: {problem}", "give {data.shape}, or an image that fits", "data.path")
    sent = [TensorSpec(one.name, one.datatype, one.shape) for one in payload]
    tensors.check_room(sent, "data", in_grpc_message, as_json)
    return full


def _others(spec: Images, others: Sequence[TensorSpec], name: str, max_batch: int) -> list[TensorInput]:
    """The inputs that are not the image, with full shapes."""
    shapes: dict[str, list[Size]] = {one: [*sizes] for one, sizes in spec.shape.items() if one != name}
    names = {one.name for one in others}
    for unknown in sorted(shapes.keys() - names):
        raise fill.no_input(unknown, [*names, name], "data.shape")
    fill.check(spec.fill, others)
    if not others:
        return []
    data = Tensors(fill=spec.fill, shape=shapes, batch=spec.batch)
    return tensor_data.complete(data, others, max_batch).inputs


def preparation_of(spec: Images) -> Preparation:
    return Preparation(spec.scaling, image_tensors.crop_of(spec.crop) if spec.crop is not None else None)


def build(spec: Images, seed: int, ids: Sequence[int]) -> list[Request]:
    """Build the requests with these ids."""
    count = distinct(spec)
    return [Request(id, _payload(spec, seed, id % count), 0, 0) for id in ids]


def _payload(spec: Images, seed: int, n: int) -> tuple[Tensor, ...]:
    """The nth different request, with its inputs in the model's order."""
    paths = _paths(spec.path)
    chosen = tuple(paths[(n * spec.batch + j) % len(paths)] for j in range(spec.batch))
    form = f"FORMAT_{spec.layout}" if spec.layout else ""
    rest = Tensors(fill=spec.fill, inputs=[one for one in spec.inputs if one.name != spec.input], batch=spec.batch)
    (request,) = tensor_data.build(rest, seed, [n])
    assert isinstance(request.payload, tuple)
    made: dict[str, Tensor] = {one.name: one for one in request.payload}
    for one in spec.inputs:
        if one.name == spec.input:
            wanted = TensorSpec(one.name, one.datatype, tuple(one.shape))
            made[one.name] = _image(chosen, wanted, form, preparation_of(spec))
    return tuple(made[one.name] for one in spec.inputs)


@lru_cache(maxsize=16)
def _image(paths: tuple[str, ...], spec: TensorSpec, form: str, preparation: Preparation) -> Tensor:
    return image_tensors.to_tensor(paths, spec, form, preparation)[0]


@lru_cache(maxsize=16)
def _paths(path: str) -> list[str]:
    return image_tensors.paths_of(path)


def distinct(spec: Images) -> int:
    """How many different requests there are: as many as there are images for, as far as memory allows."""
    requests = ceil(len(_paths(spec.path)) / spec.batch)
    size = sum(len(one.data) for one in _payload(spec, 0, 0))
    return max(1, min(requests, _ROOM // max(size, 1)))


def content(spec: Images) -> bytes:
    """Digests of the images that are sent."""
    paths = _paths(spec.path)[: distinct(spec) * spec.batch]
    return b"".join(hashlib.sha256(input_files.read_bytes(path, "data.path")).digest() for path in paths)
