"""Reads a model's configuration (config.pbtxt, config.yaml, or JSON from a client), overrides fields of it, and derives
what follows from it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format, text_format

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models.queue import Policy
from inferometer.tensors import DATATYPES, TensorSpec
from inferometer.wire.protobuf.schema import suggestion

FILES = ("config.pbtxt", "config.yaml")
_EXAMPLE = "use KEY=VALUE, such as max_batch_size=8 or dynamic_batching.max_queue_delay_microseconds=500"


def read(path: Path) -> Any:
    """Return the configuration in one of FILES."""
    with explained(str(path)):
        text = path.read_text(encoding="utf-8")
        return from_pbtxt(text) if path.suffix == ".pbtxt" else from_tree(yaml.safe_load(text))


def from_pbtxt(text: str) -> Any:
    return text_format.Parse(text, ModelConfig(), allow_unknown_field=True)


def from_tree(tree: Any, is_strict: bool = False) -> Any:
    """Build a configuration from a mapping with the .proto's field names, in which parameters may be plain values."""
    given = dict(tree or {})
    if isinstance(parameters := given.get("parameters"), dict):
        given["parameters"] = texts = dict(parameters)
        for name, value in parameters.items():
            if not isinstance(value, dict):  # YAML also has dates, and JSON's true is not Python's
                texts[name] = {"string_value": str(value).lower() if isinstance(value, bool) else str(value)}
    return json_format.ParseDict(given, ModelConfig(), ignore_unknown_fields=not is_strict)


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Raise what a parser raises as a UserError about this configuration."""
    try:
        yield
    except UserError:
        raise
    except Exception as why:  # of three parsers
        words = " ".join(str(why).split())
        raise UserError(f"{where}: {words}", "fix it; the format is Triton's ModelConfig") from None


def override(config: Any, *texts: str) -> None:
    """Set each KEY=VALUE in `config`, where a key is a path of field names: max_batch_size=8, instance_group.count=2 (in
    each group), parameters.delay=5ms. Raises UserError if there is no such field or the value does not fit."""
    for text in texts:
        key, is_given, value = (part.strip() for part in text.partition("="))
        if not is_given or not key:
            raise UserError(f"--config {text!r} has no value", _EXAMPLE)
        *path, name = key.split(".")
        if path[:1] == ["parameters"]:
            config.parameters[key.partition(".")[2]].string_value = value
            continue
        with explained(f"--config {key}"):
            messages = [config]
            for step in path:
                messages = [inner for message in messages for inner in _inner(message, step)]
            for message in messages:
                field = _field(message, name)
                message.ClearField(name)
                if field.cpp_type == field.CPPTYPE_STRING and not field.is_repeated:
                    setattr(message, name, value)
                else:
                    written = f"[{value.strip('[]')}]" if field.is_repeated else value
                    text_format.Merge(f"{name}: {written}", message)


def _inner(message: Any, name: str) -> list[Any]:
    """Return the message in a field, or all in a list of messages, which has at least one afterwards."""
    field, inner = _field(message, name), getattr(message, name)
    if field.message_type is None or field.message_type.GetOptions().map_entry:
        raise ValueError(f"{name} has no fields that can be set")
    if field.is_repeated:
        return list(inner) or [inner.add()]
    inner.SetInParent()
    return [inner]


def _field(message: Any, name: str) -> Any:
    known = message.DESCRIPTOR.fields_by_name
    if name not in known:
        raise ValueError(f"{message.DESCRIPTOR.name} has no field {name!r}; {suggestion(name, list(known))}")
    return known[name]


def specs(config: Any) -> list[dict[str, TensorSpec]]:
    """Return the inputs and the outputs by name, with -1 for the batch dimension if the model has one."""
    found: list[dict[str, TensorSpec]] = [{}, {}]
    if config.max_batch_size < 0:
        raise UserError(f"model {config.name}: max_batch_size must be at least 0 (got {config.max_batch_size})")
    batch = (-1,) if config.max_batch_size > 0 else ()
    for kind, tensors, made in zip(("inputs", "outputs"), (config.input, config.output), found, strict=True):
        if not tensors:
            what = f"model {config.name}: the configuration does not list any {kind}"
            raise UserError(what, f"list the {kind} in config.pbtxt")
        for each in tensors:
            which = f"model {config.name}: tensor {each.name!r}"
            if not each.name or datatype(each) not in DATATYPES or any(size < -1 for size in each.dims):
                remedy = "give each tensor a name, a data_type such as TYPE_FP32, and dims, with -1 for any size"
                raise UserError(f"{which} has no name, no data_type or invalid dims", remedy)
            if each.HasField("reshape"):
                raise UserError(f"{which}: reshape is not supported")
            shape, is_optional = (*batch, *each.dims), kind == "inputs" and each.optional
            made[each.name] = TensorSpec(each.name, datatype(each), shape, is_optional)
    return found


def datatype(tensor: Any) -> str:
    """Return KServe's name for the type of a ModelInput or ModelOutput."""
    return _called(tensor, "data_type").removeprefix("TYPE_").replace("STRING", "BYTES")


def policy(config: Any) -> Policy:
    """Return how the model's requests are queued and batched."""
    kind, most, batching = config.WhichOneof("scheduling_choice"), config.max_batch_size, config.dynamic_batching
    if kind in ("ensemble_scheduling", "sequence_batching"):
        raise UserError(f"model {config.name}: {kind} is not supported", "use dynamic_batching, or no batching")
    if wrong := [size for size in batching.preferred_batch_size if not 0 < size <= most]:
        what = f"preferred_batch_size must be between 1 and max_batch_size, which is {most} (got {wrong[0]})"
        raise UserError(f"model {config.name}: {what}")
    queue, parameters = batching.default_queue_policy, config.parameters
    limit = parameters["max_queue_size"].string_value if "max_queue_size" in parameters else "0"
    if not limit.isdecimal():
        what = f"parameter max_queue_size must be a whole number of at least 0 (got {limit!r:.60})"
        raise UserError(f"model {config.name}: {what}")
    timeout_us = queue.default_timeout_microseconds if _called(queue, "timeout_action") == "REJECT" else 0
    limits: dict[str, Any] = {"limit": queue.max_queue_size or int(limit), "timeout_ns": timeout_us * 1000}
    if kind != "dynamic_batching" or most <= 1 or config.model_transaction_policy.decoupled:
        return Policy(**limits)
    preferred, delay_ns = frozenset(batching.preferred_batch_size), batching.max_queue_delay_microseconds * 1000
    return Policy(max_rows=most, batching=True, preferred=preferred, delay_ns=delay_ns, **limits)


def devices(config: Any, default: str) -> list[str]:
    """Return the device of each instance."""
    found: list[str] = []
    for group in config.instance_group:
        if group.count < 0:
            raise UserError(f"model {config.name}: instance_group.count must be at least 0 (got {group.count})")
        gpus = [f"cuda:{gpu}" for gpu in group.gpus] or ["cuda"]
        names = {"KIND_CPU": ["cpu"], "KIND_GPU": gpus}.get(_called(group, "kind"), [default])
        found += [name for name in names for _ in range(group.count or 1)]
    return found or [default]


def _called(message: Any, field: str) -> str:
    """Return the name of an enum value, or "" if it is unknown."""
    known = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(getattr(message, field))
    return str(known.name) if known is not None else ""
