"""Reads a model's configuration (config.pbtxt, config.yaml, or JSON from a client), overrides fields of it, and derives
what follows from it.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format, text_format

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models.queue import Policy
from inferometer.serve.models.types import ModelSignature
from inferometer.tensors import DATATYPES, TensorSpec
from inferometer.wire.protobuf.schema import suggestion

FILES = ("config.pbtxt", "config.yaml")
_WHERE = "the configuration"
_UNSUPPORTED = {"ensemble_scheduling": "ensembles are", "sequence_batching": "sequence batching is"}
_MOST_INSTANCES = 1000
_EXAMPLE = "use KEY=VALUE, such as max_batch_size=8 or dynamic_batching.max_queue_delay_microseconds=500"

# --- reading ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> Any:
    """Return the configuration in one of FILES."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return (from_pbtxt if path.suffix == ".pbtxt" else from_yaml)(text, str(path))


def from_pbtxt(text: str, where: str = _WHERE) -> Any:
    with _explained(where):
        return text_format.Parse(text, ModelConfig(), allow_unknown_field=True)


def from_yaml(text: str, where: str = _WHERE) -> Any:
    with _explained(where):
        return from_tree(yaml.safe_load(text), where)


def from_json(text: str) -> Any:
    """Return the configuration of a client's load request."""
    with _explained(_WHERE):
        return from_tree(json.loads(text))


def from_tree(tree: Any, where: str = _WHERE, is_strict: bool = False) -> Any:
    """Build a configuration from a mapping with the .proto's field names, in which parameters may be plain values."""
    with _explained(where):
        if not isinstance(tree or {}, dict):
            raise TypeError("it is not a mapping of field names, such as max_batch_size, to values")
        given = dict(tree or {})
        if isinstance(parameters := given.get("parameters"), dict):
            given["parameters"] = {
                name: one if isinstance(one, dict) else {"string_value": _text(one)} for name, one in parameters.items()
            }
        return json_format.ParseDict(given, ModelConfig(), ignore_unknown_fields=not is_strict)


def _text(value: Any) -> str:
    """Return a plain value as text: YAML also has dates, and JSON's true is not Python's."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
    except (
        text_format.ParseError,
        json_format.ParseError,
        yaml.YAMLError,
        AttributeError,
        TypeError,
        ValueError,
    ) as why:
        what = " ".join(str(why).partition(" Available Fields")[0].split())
        raise UserError(f"{where}: {what}", "fix it; the format is Triton's ModelConfig") from None


# --- overrides -------------------------------------------------------------------------------------------------------


def override(config: Any, text: str) -> None:
    """Set one KEY=VALUE in `config`, where a key is a path of field names: max_batch_size=8, instance_group.count=2,
    parameters.delay=5ms. Raises UserError if there is no such field or the value does not fit."""
    key, is_given, value = (part.strip() for part in text.partition("="))
    if not is_given or not key:
        raise UserError(f"--config {text!r} has no value", _EXAMPLE)
    tree, where = json_format.MessageToDict(config, preserving_proto_field_name=True), f"--config {key}"
    with _explained(where):
        _put(tree, config.DESCRIPTOR, key.split("."), value)
    config.CopyFrom(from_tree(tree, where, is_strict=True))


def check_overrides(overrides: tuple[str, ...]) -> None:
    """Raise UserError if the overrides do not fit any configuration."""
    for text in overrides:
        override(ModelConfig(), text)


def _put(tree: dict[str, Any], message: Any, path: list[str], value: str) -> None:
    """Set a field in the tree of a message; in a list of messages, in each of them."""
    name, *rest = path
    field = message.fields_by_name.get(name)
    if field is None:
        raise ValueError(f"{message.name} has no field {name!r}; {suggestion(name, list(message.fields_by_name))}")
    if name == "parameters" and rest:
        tree.setdefault(name, {})[".".join(rest)] = value
    elif rest and field.message_type is not None:
        found = tree.setdefault(name, [{}] if field.is_repeated else {})
        for one in found if field.is_repeated else [found]:
            _put(one, field.message_type, rest, value)
    elif rest:
        raise ValueError(f"{name} is a plain value and has no field {rest[0]!r}")
    elif field.is_repeated:
        tree[name] = yaml.safe_load(f"[{value.strip('[]')}]")
    else:
        tree[name] = value if field.cpp_type == field.CPPTYPE_STRING else yaml.safe_load(value)


# --- what follows from it --------------------------------------------------------------------------------------------


def parameter(config: Any, name: str, default: str = "") -> str:
    return str(config.parameters[name].string_value) if name in config.parameters else default


def facts(config: Any) -> ModelSignature:
    """Return the tensors, with the batch dimension if there is one."""
    for kind, fields in (("inputs", config.input), ("outputs", config.output)):
        if not fields:
            what = f"model {config.name}: the configuration does not list any {kind}"
            raise UserError(what, f"list the {kind} in config.pbtxt")
    inputs = tuple(_spec(config, each, each.optional) for each in config.input)
    return ModelSignature(inputs, tuple(_spec(config, each, False) for each in config.output))


def _spec(config: Any, tensor: Any, optional: bool) -> TensorSpec:
    kind, which = datatype(tensor), f"model {config.name}: tensor {tensor.name!r}"
    if not tensor.name or kind not in DATATYPES or any(size < -1 for size in tensor.dims):
        remedy = "give each tensor a name, a data_type such as TYPE_FP32, and dims, with -1 for any size"
        raise UserError(f"{which} has no name, no data_type or invalid dims", remedy)
    if tensor.HasField("reshape"):
        raise UserError(f"{which}: reshape is not supported")
    batch = (-1,) if config.max_batch_size > 0 else ()
    return TensorSpec(tensor.name, kind, (*batch, *tensor.dims), optional)


def datatype(tensor: Any) -> str:
    """Return KServe's name for the type of a ModelInput or ModelOutput."""
    return _called(tensor, "data_type").removeprefix("TYPE_").replace("STRING", "BYTES")


def policy(config: Any) -> Policy:
    """Return how the model's requests are queued and batched."""
    kind, most, batching = config.WhichOneof("scheduling_choice"), config.max_batch_size, config.dynamic_batching
    if kind in _UNSUPPORTED:
        what = f"model {config.name}: {_UNSUPPORTED[kind]} not supported"
        raise UserError(what, "use dynamic_batching, or no batching")
    text, queue = parameter(config, "max_queue_size", "0"), batching.default_queue_policy
    if not text.isdecimal():
        raise UserError(f"model {config.name}: parameter max_queue_size must be a whole number (got {text!r})")
    timeout_us = queue.default_timeout_microseconds if _called(queue, "timeout_action") == "REJECT" else 0
    limits: dict[str, Any] = {"limit": queue.max_queue_size or int(text), "timeout_ns": timeout_us * 1000}
    if kind != "dynamic_batching" or most <= 1 or config.model_transaction_policy.decoupled:
        return Policy(**limits)
    wrong = [size for size in batching.preferred_batch_size if not 0 < size <= most]
    if wrong:
        what = f"preferred_batch_size must be from 1 to max_batch_size, {most} (got {wrong[0]})"
        raise UserError(f"model {config.name}: {what}")
    preferred, delay_ns = frozenset(batching.preferred_batch_size), batching.max_queue_delay_microseconds * 1000
    return Policy(max_rows=most, batching=True, preferred=preferred, delay_ns=delay_ns, **limits)


def devices(config: Any, default: str) -> list[str]:
    """Return the device of each instance."""
    found: list[str] = []
    for group in config.instance_group:
        if not 0 <= group.count <= _MOST_INSTANCES:
            what = f"model {config.name}: invalid instance_group.count {group.count}"
            raise UserError(what, f"use at least 1 and at most {_MOST_INSTANCES}")
        gpus = [f"cuda:{gpu}" for gpu in group.gpus] or ["cuda"]
        names = {"KIND_CPU": ["cpu"], "KIND_GPU": gpus}.get(_called(group, "kind"), [default])
        found += [name for name in names for _ in range(group.count or 1)]
    return found or [default]


def _called(message: Any, field: str) -> str:
    """Return the name of an enum value, or "" if it is unknown."""
    known = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(getattr(message, field))
    return str(known.name) if known is not None else ""
