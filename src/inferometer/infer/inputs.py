"""A model's inputs, from the command line.

    NAME=@a.npy   an array           NAME=1,2,3   numbers, in the shape that the model takes
    NAME=@file    its bytes: an element of BYTES, or the raw data of another type       NAME=text   BYTES

The name may be left out if the model has one input. Inputs that are not given are omitted if they are optional. Otherwise, if
nothing is given at all or --fill is, they are generated as for a run (tensors.to_send). Images go to the only input that could
take them. A model that accepts either a file or its pixels, both optional, gets the file (BYTES, with a name that suggests an
image): the model knows best how to decode it.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer import tensors
from inferometer.apis import APIS, scheme_of
from inferometer.errors import UserError
from inferometer.infer import files
from inferometer.infer.flags import InferFlags, api_of, named_values
from inferometer.infer.result import InputTensor
from inferometer.probe.kserve import ModelFacts
from inferometer.tensors import Tensor, TensorSpec, shown
from inferometer.workload import fill as filling
from inferometer.workload import image_tensors, input_files

Shapes = dict[str, tuple[int, ...]]

_WORDS = {"true": True, "false": False, "1": True, "0": False}


def build(options: InferFlags, facts: ModelFacts) -> tuple[InputTensor, ...]:
    """All inputs of the request, in the model's order."""
    over_grpc, as_json, fill = (
        scheme_of(options.url) == "grpc",
        APIS[api_of(options)].has_json_tensors,
        options.fill or "random",
    )
    specs = facts.metadata.inputs
    config = facts.config.raw if facts.config is not None else {}
    shapes = _shapes(options, specs)
    given = {spec.name: _parsed(text, spec, shapes.get(spec.name)) for text, spec in _named_inputs(options, specs)}
    if options.images:
        formats = image_tensors.formats(config)
        paths = [path for one in options.images for path in image_tensors.paths_of(one)]
        left = [spec for spec in specs if spec.name not in given]
        spec = image_tensors.input_for(left, specs, formats, _optional(specs, config))
        wanted = TensorSpec(spec.name, spec.datatype, shapes.get(spec.name, spec.shape))
        _check_batch(len(paths), facts)
        tensors.check_room([_sized(wanted, len(paths))], "--image", over_grpc, as_json)
        preparation = image_tensors.Preparation(
            options.scaling, image_tensors.crop_of(options.crop) if options.crop else None
        )
        made = image_tensors.to_tensor(paths, wanted, formats.get(spec.name, ""), preparation)
        given[spec.name] = InputTensor(*made)
        _check_fit(given[spec.name].tensor, spec)
    generated = _to_generate(options, specs, given, shapes, _optional(specs, config))
    where = "--shape" if shapes else f"the model {facts.metadata.name}"
    tensors.check_room(generated, where, over_grpc, as_json, zeros=fill == "zeros")
    seed = secrets.randbits(64)
    given |= {spec.name: _generated(spec, fill, seed) for spec in generated}
    return tuple(given[spec.name] for spec in specs if spec.name in given)


def _optional(specs: Sequence[TensorSpec], config: Mapping[str, Any]) -> set[str]:
    """The inputs that a request may omit."""
    configured = {str(spec.get("name")) for spec in config.get("input") or () if spec.get("optional")}
    return configured | {spec.name for spec in specs if spec.optional}


def _to_generate(
    options: InferFlags,
    specs: Sequence[TensorSpec],
    given: Mapping[str, InputTensor],
    shapes: Shapes,
    optional: set[str],
) -> list[TensorSpec]:
    """The inputs that are needed and not given, with full shapes."""
    wanted = {spec.name for spec in specs if spec.name not in optional or spec.name in shapes} | given.keys()
    needed = [spec for spec in tensors.to_send(specs, wanted) if spec.name not in given]
    if given and needed and options.fill is None:
        missing = ", ".join(f"{spec.name} ({spec.datatype} {shown(spec.shape)})" for spec in needed)
        raise UserError(f"the model also takes {missing}", f"give --input {needed[0].name}=..., or --fill zeros")
    return [_sized(TensorSpec(spec.name, spec.datatype, shapes.get(spec.name, spec.shape))) for spec in needed]


def _sized(spec: TensorSpec, batch: int = 1) -> TensorSpec:
    """The input with a full shape: `batch` for an open first dimension, 1 for the others."""
    shape = tuple((1 if index else batch) if size < 0 else size for index, size in enumerate(spec.shape))
    return TensorSpec(spec.name, spec.datatype, shape)


def _check_batch(count: int, facts: ModelFacts) -> None:
    if 0 < facts.max_batch < count:
        raise UserError(
            f"--image: {count} images are more than the model's maximum batch size of {facts.max_batch}",
            "give fewer images",
        )


def _generated(spec: TensorSpec, fill: str, seed: int) -> InputTensor:
    how = filling.filling_of(fill, spec.name, spec.datatype)
    return InputTensor(filling.generate(spec, how, seed, 0), how if isinstance(how, str) else "random")


# --- names and shapes ------------------------------------------------------------------------------------------------


def _named_inputs(options: InferFlags, specs: Sequence[TensorSpec]) -> list[tuple[str, TensorSpec]]:
    by_name = {spec.name: spec for spec in specs}
    found = []
    for name, text in named_values(options.inputs, "--input").items():
        if not name and len(specs) != 1:
            raise UserError(
                f"--input {text!r:.60} does not name an input, and the model has {len(specs)}: {_listed(specs)}",
                f"write --input {specs[0].name if specs else 'NAME'}=...",
            )
        if name and name not in by_name:
            raise _unknown("--input", name, specs)
        found.append((text, by_name[name] if name else specs[0]))
    return found


def _unknown(flag: str, name: str, specs: Sequence[TensorSpec]) -> UserError:
    return UserError(f"{flag}: the model has no input {name!r:.60}", f"its inputs are {_listed(specs) or 'none'}")


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} ({spec.datatype} {shown(spec.shape)})" for spec in specs)


def _shapes(options: InferFlags, specs: Sequence[TensorSpec]) -> Shapes:
    """Full shapes by input, checked against the model's."""
    by_name = {spec.name: spec for spec in specs}
    found: Shapes = {}
    for name, text in named_values(options.shapes, "--shape").items():
        if not name and len(specs) != 1:
            raise UserError(f"--shape {text!r:.60} does not name an input", f"the model's inputs are {_listed(specs)}")
        if name and name not in by_name:
            raise _unknown("--shape", name, specs)
        spec = by_name[name] if name else specs[0]
        try:
            shape = tuple(int(size) for size in text.strip("[] ").split(",") if size.strip())
        except ValueError:
            shape = (-1,)
        if min(shape, default=0) < 0:
            raise UserError(f"--shape {text!r:.60} is not a shape", f"write --shape {spec.name}=1,3,224,224")
        wrong = tensors.misfit(Tensor(spec.name, spec.datatype, shape, b""), spec)
        if wrong:
            raise UserError(f"--shape: {wrong}", "give every dimension, including the batch")
        found[spec.name] = shape
    return found


def _check_fit(tensor: Tensor, spec: TensorSpec) -> None:
    wrong = tensors.misfit(tensor, spec)
    if wrong:
        raise UserError(wrong, f"give --shape {spec.name}=..., or a tensor of that shape")


# --- one input -------------------------------------------------------------------------------------------------------


def _parsed(text: str, spec: TensorSpec, shape: tuple[int, ...] | None) -> InputTensor:
    if text.startswith("@"):
        data = files.read(text[1:], f"--input {spec.name}")
        made, source = input_files.from_file(text[1:], data, spec, shape), text[1:]
    elif spec.datatype == "BYTES":
        made, source = input_files.shaped(np.array([text.encode()], object), spec, shape), "given"
    else:
        made, source = input_files.shaped(_numbers(text, spec), spec, shape), "given"
    _check_fit(made, spec)
    return InputTensor(made, source)


def _numbers(text: str, spec: TensorSpec) -> NDArray[Any]:
    """Parse numbers such as 1,2,3; brackets and spaces are ignored."""
    parts = [part for part in text.replace("[", " ").replace("]", " ").replace(",", " ").split() if part]
    kind = tensors.datatype_of(spec.name, spec.datatype).dtype
    try:
        if spec.datatype == "BOOL":
            return np.array([_WORDS[part.lower()] for part in parts], np.bool_)
        if kind is None or kind.kind == "f":
            return np.array([_float(part, spec) for part in parts], np.float64)
        values = [int(part) for part in parts]
        return np.array(values, np.uint64 if max(values, default=0) >= 2**63 else np.int64)
    except (ValueError, KeyError, OverflowError):
        raise UserError(
            f"tensor {spec.name}: the model expects {spec.datatype}; {text!r:.60} was given",
            f"write --input {spec.name}=1,2,3, or @FILE.npy",
        ) from None


def _float(text: str, spec: TensorSpec) -> float:
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise UserError(
            f"tensor {spec.name}: {text:.60} does not fit into {spec.datatype}", "write inf if you mean infinity"
        )
    return value
