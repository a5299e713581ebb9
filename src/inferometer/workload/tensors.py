"""Tensors for a model behind KServe v2: zeros, random numbers, or the content of a file.

The model's inputs come from the server's metadata or from data.inputs. `complete` turns them into full shapes, once, before
any request is built. After that a request depends on (spec, seed, id) alone, as with every kind of data.
"""

import difflib
from collections.abc import Sequence

import msgspec
import numpy as np

from inferometer import tensors
from inferometer.config.data import TensorInput, Tensors
from inferometer.errors import UserError
from inferometer.tensors import Tensor, TensorSpec
from inferometer.types import Request
from inferometer.workload import tensor_files

_ROOM = 256 << 20
"""Maximum total size in bytes of the distinct random requests of a run, which are all built before t=0."""
_MOST = 20_000
"""Maximum number of distinct random requests."""


def complete(
    spec: Tensors,
    metadata: Sequence[TensorSpec],
    max_batch: int,
    in_grpc_message: bool = False,
    as_json: bool = False,
) -> Tensors:
    """Return the spec with full input shapes: those in data.shape, else 1 for a dynamic size and data.batch for the batch.

    Raises UserError when the spec does not fit the model, or a request would not fit into memory or a gRPC message.
    """
    known = _specs(spec.inputs) or list(metadata)
    names = [one.name for one in known]
    for name in spec.shape:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.4)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(
                f"data.shape: the model has no input {name}", f"{hint}its inputs are {', '.join(names) or 'none'}"
            )
    if spec.batch > 1 and not max_batch:
        raise UserError(
            f"data.batch is {spec.batch}, but the model takes no batches",
            "leave it out, or give full shapes in data.shape",
        )
    if max_batch and spec.batch > max_batch:
        raise UserError(f"data.batch is {spec.batch}, but the model takes at most {max_batch}", "lower it")
    known = _needed(known, spec)
    full = msgspec.structs.replace(spec, inputs=[_full(one, spec, max_batch) for one in known])
    where = "data.shape" if spec.shape else "data"
    tensors.check_room(_specs(full.inputs), where, in_grpc_message, as_json, zeros=spec.fill == "zeros")
    if spec.fill.startswith("@"):
        _check_file(full, known)
    if max_batch and batch(full, max_batch) > max_batch:
        given = batch(full, max_batch)
        raise UserError(
            f"data has a batch of {given}, but the model takes at most {max_batch}",
            "lower the first size of data.shape, or of the tensors in the file",
        )
    return full


def _needed(known: list[TensorSpec], spec: Tensors) -> list[TensorSpec]:
    """The inputs to send. Optional inputs are sent only if data.shape or the file has them."""
    named = spec.shape.keys() | (tensor_files.names(spec.fill[1:]) if spec.fill.startswith("@") else set())
    return tensors.to_send(known, {one.name for one in known if not one.optional} | named)


def _check_file(spec: Tensors, known: Sequence[TensorSpec]) -> None:
    """Check that the tensors in the file have the datatypes and shapes that the model takes."""
    for payload in tensor_files.payloads(spec):
        for tensor, one in zip(payload, known, strict=True):
            if problem := tensors.misfit(tensor, one):
                raise UserError(
                    f"data.fill: {spec.fill[1:]}: {problem}", "save tensors with the shapes that the model takes"
                )


def _full(one: TensorSpec, spec: Tensors, max_batch: int) -> TensorInput:
    tensors.datatype_of(one.name, one.datatype)
    given = spec.shape.get(one.name)
    if given is None:
        shape = [1 if size < 0 else size for size in one.shape]
        if max_batch and one.shape and one.shape[0] < 0:
            shape[0] = spec.batch
    else:
        if problem := tensors.misfit(Tensor(one.name, one.datatype, tuple(given), b""), one):
            raise UserError(
                f"data.shape: {problem}", "give every dimension, including the batch; a dimension of -1 takes any size"
            )
        if any(size < 0 for size in given):
            raise UserError(
                f"data.shape: {one.name}: {tensors.shown(given)} has a size below 0", "give a size for every dimension"
            )
        if max_batch and given and spec.batch not in (1, given[0]):
            raise UserError(
                f"data.batch is {spec.batch}, but data.shape has a batch of {given[0]} for {one.name}: {tensors.shown(given)}",
                f"write {tensors.shown([spec.batch, *given[1:]])}, or leave data.batch out",
            )
        shape = list(given)
    return TensorInput(name=one.name, datatype=one.datatype, shape=shape)


def build(spec: Tensors, seed: int, ids: Sequence[int]) -> list[Request]:
    """Build the requests with these ids."""
    if spec.fill.startswith("@"):
        payloads = tensor_files.payloads(spec)
        return [Request(id, payloads[id % len(payloads)], 0, 0) for id in ids]
    if spec.fill == "zeros":
        payload = tuple(tensors.zeros(one.name, one.datatype, one.shape) for one in spec.inputs)
        return [Request(id, payload, 0, 0) for id in ids]
    if spec.fill != "random":
        raise UserError(f"data.fill {spec.fill!r} is not known", "use zeros, random, @FILE or @FOLDER")
    count = distinct(spec) or 1
    return [Request(id, _random(spec, seed, id % count), 0, 0) for id in ids]


def _random(spec: Tensors, seed: int, id: int) -> tuple[Tensor, ...]:
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, id]))
    return tuple(tensors.random(one.name, one.datatype, one.shape, generator) for one in spec.inputs)


def distinct(spec: Tensors) -> int:
    """How many different requests there are."""
    if spec.fill == "zeros":
        return 1
    if spec.fill.startswith("@"):
        return len(tensor_files.payloads(spec))
    return max(1, min(_MOST, _ROOM // max(size(spec), 1)))


def size(spec: Tensors) -> int:
    """Size in bytes of the tensors of one request."""
    return sum(map(tensors.size_of, _specs(spec.inputs)))


def _specs(inputs: Sequence[TensorInput]) -> list[TensorSpec]:
    return [TensorSpec(one.name, one.datatype, tuple(one.shape)) for one in inputs]


def batch(spec: Tensors, max_batch: int) -> int:
    """Inferences per request: the first dimension if the model takes batches; for a file, that of its largest request."""
    if not max_batch or not spec.inputs:
        return 1
    shapes = [spec.inputs[0].shape]
    if spec.fill.startswith("@"):
        shapes = [list(payload[0].shape) for payload in tensor_files.payloads(spec)]
    return max(shape[0] if shape else 1 for shape in shapes)


def has_streams(spec: Tensors) -> bool:
    """Whether the data itself says which requests form a sequence: a JSON file does."""
    return spec.fill.startswith("@") and bool(tensor_files.streams(spec.fill[1:]))


def sequences(spec: Tensors, count: int, first: int = 0, step: int = 1) -> list[Sequence[int]]:
    """The ids of the requests of each sequence: `count` sequences, or as many as there are streams if that is more.

    Each sequence is a stream of the file; if data.sequence is longer than the stream, it continues at the stream's start. If
    data.sequence is a length and the file has at most one stream, sequences are consecutive requests. `first` and `step`
    select the sequences of one shard: first, first + step, first + 2 * step ...
    """
    streams = tensor_files.streams(spec.fill[1:]) if spec.fill.startswith("@") else []
    length = spec.sequence
    if isinstance(length, int) and len(streams) < 2:
        return [range(n * length, (n + 1) * length) for n in range(count)]
    if not streams:
        raise UserError(
            f"data.sequence is {length}, but data.fill is {spec.fill}",
            'give a JSON file with a list of requests for each sequence: "@FILE"',
        )
    if spec.batch > 1:
        raise UserError(
            f"data.batch is {spec.batch}, but the requests of {spec.fill[1:]} are sequences, with one inference per request",
            "leave data.batch at 1",
        )
    chosen = (streams[(first + n * step) % len(streams)] for n in range(max(count, -(-len(streams) // step))))
    return [
        [stream[i % len(stream)] for i in range(length)] if isinstance(length, int) else stream for stream in chosen
    ]


def content(spec: Tensors) -> bytes:
    return tensor_files.content(spec.fill[1:]) if spec.fill.startswith("@") else b""
