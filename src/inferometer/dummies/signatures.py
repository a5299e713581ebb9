"""Names, datatypes and shapes of a model's inputs: from a server, from KServe metadata, from ONNX, or from PyTorch.

PyTorch's modules do not say what their arguments are. Arguments with well-known names (input_ids, attention_mask ...) are whole
numbers of shape [batch, length]; all others are floats, whose shape the caller gives. A Hugging Face model has a config, which says
more: the size of its vocabulary and of its images, and whether it has a decoder.
"""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferometer.config.data.tensors import InputFill
from inferometer.errors import UserError
from inferometer.tensors import DATATYPES, TensorSpec
from inferometer.workload.fill import well_known


class Signature(msgspec.Struct, frozen=True):
    """The inputs of a model; -1 is a dimension of any size."""

    inputs: tuple[TensorSpec, ...]
    max_batch: int = 0
    """0: the model takes no batches, or it is not known."""
    fills: dict[str, InputFill] = {}
    """What some inputs must be filled with, unless the caller says otherwise."""


def signature_of(
    source: Any, model: str | None, names: Sequence[str] | None, shapes: Mapping[str, Sequence[int]]
) -> Signature:
    """Find the inputs of `source`; `shapes` are those that the caller gives."""
    if isinstance(source, str) and "://" in source:
        return _chosen(_from_server(source, model), names)
    if isinstance(source, str | Path):
        source = _loaded(Path(source).expanduser())
    if isinstance(source, Mapping):
        return _chosen(_from_metadata(source), names)
    if hasattr(source, "get_inputs"):
        return _chosen(Signature(tuple(map(_from_node, source.get_inputs()))), names)
    if hasattr(source, "graph") and hasattr(source.graph, "initializer"):
        return _chosen(_from_graph(source.graph), names)
    if hasattr(source, "forward"):
        return _from_module(source, names, shapes)
    raise UserError(
        f"dummy_inputs: {type(source).__name__} does not describe a model",
        "give a URL, KServe metadata, an .onnx or TorchScript file, a Hugging Face folder, an ONNX Runtime session, or a torch module",
    )


def _chosen(found: Signature, names: Sequence[str] | None) -> Signature:
    """The inputs with these names, or all that are not optional."""
    by_name = {one.name: one for one in found.inputs}
    for name in names or ():
        if name not in by_name:
            raise UserError(f"dummy_inputs: the model has no input {name}", f"its inputs are {', '.join(by_name)}")
    inputs = [by_name[name] for name in names] if names else [one for one in found.inputs if not one.optional]
    return Signature(tuple(inputs), found.max_batch)


def _loaded(path: Path) -> Any:
    if not path.exists():
        raise UserError(f"dummy_inputs: {path}: No such file", "give an .onnx or a TorchScript file")
    if path.is_dir():
        return _hugging_face(path)
    if path.suffix == ".onnx":
        return _onnx_session(path)
    try:
        torch = importlib.import_module("torch")  # an extra
    except ImportError:
        raise UserError(
            f"dummy_inputs: {path.name} needs PyTorch, which is not installed", "pip install 'inferometer[torch]'"
        ) from None
    try:
        return torch.jit.load(str(path), map_location="cpu")
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"dummy_inputs: {path} is not a TorchScript file: {reason}", "save it with torch.jit.save"
        ) from None


def _hugging_face(folder: Path) -> Any:
    """A Hugging Face model without its weights: the class that its config names, on the device `meta`."""
    if not (folder / "config.json").is_file():
        raise UserError(
            f"dummy_inputs: {folder} has no config.json", "give the folder of a Hugging Face model, or a file"
        )
    try:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise UserError(
            f"dummy_inputs: {folder.name} needs {error.name}, which is not installed",
            "pip install 'inferometer[transformers]'",
        ) from None
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        kind = getattr(transformers, next(iter(config.architectures or ()), ""), None)
        with torch.device("meta"):
            return kind(config) if kind is not None else transformers.AutoModel.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"dummy_inputs: {folder} cannot be loaded: {reason:.200}", "check its config.json") from None


def _onnx_session(path: Path) -> Any:
    try:
        onnxruntime = importlib.import_module("onnxruntime")  # an extra
    except ImportError:
        raise UserError(
            f"dummy_inputs: {path.name} needs ONNX Runtime, which is not installed", "pip install 'inferometer[onnx]'"
        ) from None
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        reason = str(error).partition("\n")[0]
        raise UserError(f"dummy_inputs: {path} cannot be loaded: {reason:.200}", "export it again") from None


# --- servers and metadata --------------------------------------------------------------------------------------------


def _from_server(url: str, model: str | None) -> Signature:
    from inferometer.config import from_mapping  # noqa: PLC0415 - only needed for a server
    from inferometer.probe import reach  # noqa: PLC0415

    server: dict[str, Any] = {"url": url, "api": "kserve"} | ({"model": model} if model else {})
    facts = reach.reach(from_mapping({"server": server}, source="dummy_inputs").server).facts
    assert facts is not None
    return Signature(tuple(facts.metadata.inputs), facts.max_batch)


def _from_metadata(tree: Mapping[str, Any]) -> Signature:
    """KServe's metadata of a model, `{"inputs": [{"name", "datatype", "shape"}]}`, with `max_batch_size` if it is known."""
    try:
        inputs = msgspec.convert(tree["inputs"], tuple[TensorSpec, ...], strict=False)
    except (KeyError, msgspec.ValidationError) as error:
        raise UserError(
            f"dummy_inputs: the metadata is not that of KServe v2: {error}",
            'give {"inputs": [{"name": ..., "datatype": "FP32", "shape": [-1, 3]}]}',
        ) from None
    return Signature(inputs, int(tree.get("max_batch_size") or 0))


# --- ONNX ------------------------------------------------------------------------------------------------------------

_BY_ONNX_NAME = {
    "bool": "BOOL", "string": "BYTES", "float16": "FP16", "bfloat16": "BF16", "float": "FP32", "double": "FP64",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_BY_ONNX_NUMBER = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES", 9: "BOOL", 10: "FP16",
    11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip
"""By TensorProto.DataType."""


def _from_node(node: Any) -> TensorSpec:
    """An input of an ONNX Runtime session, whose type is written `tensor(int64)`."""
    datatype = _BY_ONNX_NAME.get(str(node.type).removeprefix("tensor(").removesuffix(")"))
    if datatype is None:
        raise UserError(f"dummy_inputs: the input {node.name} is {node.type}, which is not a tensor of KServe v2")
    return TensorSpec(node.name, datatype, tuple(size if isinstance(size, int) else -1 for size in node.shape))


def _from_graph(graph: Any) -> Signature:
    """The inputs of a ModelProto; older files list the weights among them."""
    weights = {one.name for one in graph.initializer}
    inputs = []
    for one in graph.input:
        kind = one.type.tensor_type
        if one.name in weights:
            continue
        if kind.elem_type not in _BY_ONNX_NUMBER:
            raise UserError(f"dummy_inputs: the input {one.name} has a type that KServe v2 does not have")
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)
        inputs.append(TensorSpec(one.name, _BY_ONNX_NUMBER[kind.elem_type], shape))
    return Signature(tuple(inputs))


# --- PyTorch ---------------------------------------------------------------------------------------------------------

_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Arguments that are given although they are optional, as those of the transformers library are."""


_FLOATS = {"torch.float16": "FP16", "torch.bfloat16": "BF16", "torch.float64": "FP64"}
"""Datatypes of modules that are not FP32."""


def _from_module(module: Any, names: Sequence[str] | None, shapes: Mapping[str, Sequence[int]]) -> Signature:
    arguments = _arguments(module)
    known = _from_config(module)
    chosen = list(names or ()) or [name for name, is_required in arguments.items() if is_required or name in shapes]
    chosen = chosen or [name for name in dict.fromkeys((*known, *_TEXT_INPUTS)) if name in arguments]
    for name in chosen:
        if name not in arguments:
            raise UserError(
                f"dummy_inputs: forward has no argument {name}", f"its arguments are {', '.join(arguments) or 'none'}"
            )
    inputs = tuple(
        known[name] if name in known and name not in shapes else _from_argument(name, shapes) for name in chosen
    )
    size = getattr(_text_config(module), "vocab_size", None)
    ids = [name for name in chosen if isinstance(well_known(name, "INT64"), InputFill)]
    fills = {name: InputFill(random=[0, size]) for name in ids} if isinstance(size, int) and size > 0 else {}
    return Signature(inputs, fills=fills)


def _from_config(module: Any) -> dict[str, TensorSpec]:
    """The inputs that a Hugging Face model needs, as far as its config says what they are."""
    config, main = getattr(module, "config", None), getattr(module, "main_input_name", None)
    if config is None or not isinstance(main, str):
        return {}
    kind = _FLOATS.get(str(getattr(module, "dtype", "")), "FP32")
    found: dict[str, TensorSpec] = {}
    if main == "pixel_values" and (size := getattr(config, "image_size", None)):
        height, width = size if isinstance(size, list | tuple) else (size, size)
        found[main] = TensorSpec(main, kind, (-1, int(getattr(config, "num_channels", 3)), int(height), int(width)))
    elif main == "input_values":
        found[main] = TensorSpec(main, kind, (-1, -1))
    elif main == "input_features" and (bins := getattr(config, "num_mel_bins", None)):
        length = 2 * int(getattr(config, "max_source_positions", 0) or 0) or -1
        found[main] = TensorSpec(main, kind, (-1, int(bins), length))
    elif well_known(main, "INT64") is not None:
        found |= {name: TensorSpec(name, "INT64", (-1, -1)) for name in dict.fromkeys((main, *_TEXT_INPUTS))}
    if getattr(config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = TensorSpec("decoder_input_ids", "INT64", (-1, -1))
    return found


def _text_config(module: Any) -> Any:
    config: Any = getattr(module, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _arguments(module: Any) -> dict[str, bool]:
    """The arguments of `forward`, and whether each is required."""
    schema = getattr(module.forward, "schema", None)
    if schema is not None:  # TorchScript
        return {one.name: not one.has_default_value() for one in schema.arguments if one.name != "self"}
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY)
    return {one.name: one.default is inspect.Parameter.empty for one in parameters if one.kind in kinds}


def _from_argument(name: str, shapes: Mapping[str, Sequence[int]]) -> TensorSpec:
    is_text = well_known(name, "INT64") is not None
    if name in shapes:
        return TensorSpec(name, "INT64" if is_text else "FP32", tuple(shapes[name]))
    if not is_text:
        raise UserError(
            f"dummy_inputs: the shape of {name} is not known: a torch module does not say it",
            f"give shapes={{'{name}': [1, 3, 224, 224]}}",
        )
    return TensorSpec(name, "INT64", (-1, -1))


assert set(_BY_ONNX_NAME.values()) == set(_BY_ONNX_NUMBER.values()) == set(DATATYPES)
