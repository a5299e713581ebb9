"""Reads a model's configuration (config.pbtxt, config.yaml, or JSON from a client), overrides fields of it, and derives
what follows from it.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor as Field

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models.queue import Policy
from inferometer.serve.models.types import ModelSignature
from inferometer.tensors import DATATYPES, TensorSpec
from inferometer.wire.protobuf.schema import suggestion

FILES = ("config.pbtxt", "config.yaml", "config.yml")
_FORMAT = "fix it; the format is Triton's ModelConfig"
_UNSUPPORTED = {"ensemble_scheduling": "ensembles are", "sequence_batching": "sequence batching is"}
_MOST_INSTANCES = 1000
_INVALID = text_format.ParseError, json_format.ParseError, yaml.YAMLError, AttributeError, TypeError, ValueError
_EXAMPLE = "use KEY=VALUE, such as max_batch_size=8 or dynamic_batching.max_queue_delay_microseconds=500"
_KINDS = {
    Field.CPPTYPE_INT32: "a whole number from -2147483648 to 2147483647",
    Field.CPPTYPE_INT64: "a whole number of at most 64 bits",
    Field.CPPTYPE_UINT32: "a whole number from 0 to 4294967295",
    Field.CPPTYPE_UINT64: "a whole number from 0",
    Field.CPPTYPE_BOOL: "true or false", Field.CPPTYPE_FLOAT: "a number", Field.CPPTYPE_DOUBLE: "a number",
}  # fmt: skip


def read(path: Path) -> Any:
    """Return the configuration in one of FILES."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return from_pbtxt(text, str(path)) if path.suffix == ".pbtxt" else from_yaml(text, str(path))


def from_pbtxt(text: str, where: str = "the configuration") -> Any:
    def parse() -> Any:
        return text_format.Parse(text, ModelConfig(), allow_unknown_field=True)

    return _parsed(parse, where, f"{_FORMAT} in protobuf text format")


def from_yaml(text: str, where: str = "the configuration") -> Any:
    return from_tree(_parsed(lambda: yaml.safe_load(text), f"{where} is not valid YAML", "fix the syntax"), where)


def from_json(text: str) -> Any:
    """Return the configuration of a client's load request."""
    tree = _parsed(lambda: json.loads(text), "the configuration is not valid JSON", "send a ModelConfig as JSON")
    config = from_tree(tree)
    if "hub" in config.parameters:
        raise UserError("parameters.hub cannot be set by a client", "remove it from the configuration")
    return config


def from_tree(tree: Any, where: str = "the configuration") -> Any:
    """Build a configuration from JSON types with the .proto's field names; parameters may be plain values."""
    if not isinstance(tree, dict | None):
        raise UserError(f"{where} is not a mapping", "use the fields of Triton's ModelConfig, such as max_batch_size")
    parse = partial(json_format.ParseDict, ignore_unknown_fields=True)
    return _parsed(lambda: parse(with_texts(tree or {}), ModelConfig()), where, _FORMAT)


def with_texts(tree: dict[str, Any]) -> dict[str, Any]:
    """Convert plain parameter values to the messages that protobuf expects."""
    parameters = tree.get("parameters")
    if not isinstance(parameters, dict):
        return tree
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in parameters.items()}
    plain = {name: {"string_value": texts[name]} for name, value in parameters.items() if not isinstance(value, dict)}
    return {**tree, "parameters": {**parameters, **plain}}


def _parsed(parse: Callable[[], Any], what: str, remedy: str) -> Any:
    try:
        return parse()
    except _INVALID as error:
        raise UserError(f"{what}: {' '.join(str(error).split())}", remedy) from None
    except RecursionError:
        raise UserError(f"{what.removesuffix(' is not valid YAML')} is nested too deeply", _FORMAT) from None


# --- overrides -------------------------------------------------------------------------------------------------------


def override(config: Any, text: str) -> None:
    """Set one KEY=VALUE in `config`, where a key is a path of field names: max_batch_size=8, instance_group.count=2,
    parameters.delay=5ms. Raises UserError if there is no such field or the value does not fit."""
    key, is_given, value = (part.strip() for part in text.partition("="))
    if not is_given or not key:
        raise UserError(f"--config {text!r} has no value", _EXAMPLE)
    _put(config, key.split("."), value, f"--config {key}")


def check_overrides(overrides: tuple[str, ...]) -> None:
    """Raise UserError if the overrides do not fit any configuration."""
    for text in overrides:
        override(ModelConfig(), text)


def _put(message: Any, path: list[str], value: str, option: str) -> None:
    name, *rest = path
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        remedy = suggestion(name, [each.name for each in message.DESCRIPTOR.fields])
        raise UserError(f"{option}: {message.DESCRIPTOR.name} has no field {name!r}", remedy)
    part = getattr(message, name)
    if field.message_type is None:
        if rest:
            raise UserError(f"{option}: {name} is a plain value and has no field {rest[0]!r}")
        _put_value(message, field, value, option)
    elif field.message_type.GetOptions().map_entry:
        _put_entry(part, field, ".".join(rest), value, option)
    elif rest:
        for item in (part or [part.add()]) if field.is_repeated else [part]:
            _put(item, rest, value, option)
    elif field.is_repeated or value not in ("", "{}"):
        remedy = f"use {name}.FIELD=VALUE with one of {', '.join(each.name for each in field.message_type.fields)}"
        raise UserError(f"{option}: the name of one of its fields is missing", remedy)
    else:  # dynamic_batching={} enables it with its defaults
        part.SetInParent()


def _put_value(message: Any, field: Field, value: str, option: str) -> None:
    message.ClearField(field.name)
    is_text = field.cpp_type == Field.CPPTYPE_STRING
    if is_text and not field.is_repeated:
        setattr(message, field.name, value)
        return
    for item in value.strip("[]").split(",") if field.is_repeated else [value]:
        try:
            text_format.Merge(f'{field.name}: "{item.strip()}"' if is_text else f"{field.name}: {item}", message)
        except text_format.ParseError:
            names = f"one of {', '.join(each.name for each in field.enum_type.values)}" if field.enum_type else "a text"
            raise UserError(f"{option} must be {_KINDS.get(field.cpp_type, names)} (got {item!r})") from None


def _put_entry(entries: Any, field: Field, name: str, value: str, option: str) -> None:
    if not name:
        raise UserError(f"{option}: the name of one of the {field.name} is missing", f"use {field.name}.NAME=VALUE")
    kind = field.message_type.fields_by_name["value"]  # type: ignore[union-attr]
    if kind.message_type is None:
        entries[name] = value
    elif "string_value" in kind.message_type.fields_by_name:
        entries[name].string_value = value
    else:
        raise UserError(f"{option}: this field cannot be overridden", "set it in the model's config.pbtxt")


# --- what follows from it --------------------------------------------------------------------------------------------


def parameter(config: Any, name: str, default: str = "") -> str:
    return str(config.parameters[name].string_value) if name in config.parameters else default


def facts(config: Any) -> ModelSignature:
    """Return the tensors, with the batch dimension if there is one; raises UserError if the configuration is
    incomplete."""
    for kind, fields in (("inputs", config.input), ("outputs", config.output)):
        if not fields:
            what = f"model {config.name}: the configuration does not list any {kind}"
            raise UserError(what, f"list the {kind} in config.pbtxt")
    inputs = tuple(_spec(config, each, each.optional) for each in config.input)
    return ModelSignature(inputs, tuple(_spec(config, each, False) for each in config.output))


def _spec(config: Any, tensor: Any, optional: bool) -> TensorSpec:
    kind = datatype(tensor)
    if not tensor.name or kind not in DATATYPES:
        what = f"model {config.name}: a tensor in the configuration has no name or no data_type"
        raise UserError(what, "give each tensor a name, a data_type such as TYPE_FP32, and dims")
    which = f"model {config.name}: tensor {tensor.name}"
    if any(size < -1 for size in tensor.dims):
        raise UserError(f"{which} has invalid dims {list(tensor.dims)}", "use -1 for any size")
    if tensor.HasField("reshape"):
        raise UserError(f"{which}: reshape is not supported")
    batch = (-1,) if config.max_batch_size > 0 else ()
    return TensorSpec(tensor.name, kind, (*batch, *tensor.dims), optional)


def datatype(tensor: Any) -> str:
    """Return KServe's name for the type of a ModelInput or ModelOutput."""
    name = _called(tensor, "data_type").removeprefix("TYPE_") or f"data_type {tensor.data_type}"
    return "BYTES" if name == "STRING" else name


def policy(config: Any) -> Policy:
    """Return how the model's requests are queued and batched."""
    kind, most, batching = config.WhichOneof("scheduling_choice"), config.max_batch_size, config.dynamic_batching
    if kind in _UNSUPPORTED:
        what = f"model {config.name}: {_UNSUPPORTED[kind]} not supported"
        raise UserError(what, "use dynamic_batching, or no batching")
    text = parameter(config, "max_queue_size", "0")
    if not text.isdecimal():
        raise UserError(f"model {config.name}: parameter max_queue_size must be a whole number (got {text!r})")
    limit = batching.default_queue_policy.max_queue_size or int(text)
    if kind != "dynamic_batching" or most <= 1 or config.model_transaction_policy.decoupled:
        return Policy(limit=limit)
    wrong = [size for size in batching.preferred_batch_size if not 0 < size <= most]
    if wrong:
        what = f"preferred_batch_size must be from 1 to max_batch_size, {most} (got {wrong[0]})"
        raise UserError(f"model {config.name}: {what}")
    preferred, delay_ns = frozenset(batching.preferred_batch_size), batching.max_queue_delay_microseconds * 1000
    return Policy(max_rows=most, batching=True, preferred=preferred, delay_ns=delay_ns, limit=limit)


def timeout_ns(config: Any) -> int:
    """Return how long requests may be queued unless they set their own timeout; 0: no limit."""
    queue = config.dynamic_batching.default_queue_policy
    return queue.default_timeout_microseconds * 1000 if _called(queue, "timeout_action") == "REJECT" else 0


def devices(config: Any, default: str) -> list[str]:
    """Return the device of each instance."""
    found: list[str] = []
    for group in config.instance_group:
        kind, count = _called(group, "kind"), group.count or 1
        if not kind:
            what = f"model {config.name}: unknown instance_group.kind {group.kind}"
            raise UserError(what, "use KIND_CPU or KIND_GPU")
        names = {"KIND_CPU": ["cpu"], "KIND_GPU": [f"cuda:{gpu}" for gpu in group.gpus] or ["cuda"]}
        for device in names.get(kind, [default]):
            if not 1 <= count <= _MOST_INSTANCES - len(found):
                what = f"model {config.name}: invalid instance_group.count {group.count}"
                raise UserError(what, f"use at least 1, and at most {_MOST_INSTANCES} instances per model")
            found += [device] * count
    return found or [default]


def _called(message: Any, field: str) -> str:
    """Return the name of an enum value, or "" if it is unknown."""
    known = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(getattr(message, field))
    return str(known.name) if known is not None else ""
