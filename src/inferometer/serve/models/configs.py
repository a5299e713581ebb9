"""Reads a model's configuration (config.pbtxt, config.yaml, or JSON from a client) and derives what follows from it."""

import json
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models.queue import Policy
from inferometer.serve.models.types import ModelSignature
from inferometer.tensors import DATATYPES, TensorSpec

FILES = ("config.pbtxt", "config.yaml", "config.yml")
_BY_TYPE = {"STRING": "BYTES"}
_UNSUPPORTED = {
    "ensemble_scheduling": "ensembles are not supported",
    "sequence_batching": "sequence batching is not supported",
}
_MOST_INSTANCES = 1000


def read(path: Path) -> Any:
    """Return the configuration in one of FILES."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return from_pbtxt(text, str(path)) if path.suffix == ".pbtxt" else from_yaml(text, str(path))


def from_pbtxt(text: str, where: str = "the configuration") -> Any:
    config = ModelConfig()
    try:
        text_format.Parse(text, config, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise UserError(
            f"{where}: {error}", "fix it; the format is Triton's ModelConfig in protobuf text format"
        ) from None
    except RecursionError:
        raise _too_deep(where) from None
    return config


def from_yaml(text: str, where: str = "the configuration") -> Any:
    try:
        return from_tree(yaml.safe_load(text), where)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {' '.join(str(error).split())}", "fix the syntax") from None
    except RecursionError:
        raise _too_deep(where) from None


def from_json(text: str) -> Any:
    """Return the configuration of a client's load request."""
    try:
        config = from_tree(json.loads(text))
    except ValueError as error:
        raise UserError(f"the configuration is not valid JSON: {error}", "send a ModelConfig as JSON") from None
    except RecursionError:
        raise _too_deep("the configuration") from None
    if "hub" in config.parameters:
        raise UserError("parameters.hub cannot be set by a client", "remove it from the configuration")
    return config


def from_tree(tree: Any, where: str = "the configuration") -> Any:
    """Build a configuration from JSON types with the .proto's field names; parameters may be plain values."""
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise UserError(f"{where} is not a mapping", "use the fields of Triton's ModelConfig, such as max_batch_size")
    config: Message = ModelConfig()
    try:
        json_format.ParseDict(with_texts(tree), config, ignore_unknown_fields=True)
    except (json_format.ParseError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{where}: {' '.join(str(error).split())}", "fix it; the format is Triton's ModelConfig"
        ) from None
    return config


def with_texts(tree: dict[str, Any]) -> dict[str, Any]:
    """Convert plain parameter values to the messages that protobuf expects."""
    parameters = tree.get("parameters")
    if not isinstance(parameters, dict):
        return tree
    texts = {
        name: value if isinstance(value, dict) else {"string_value": _text(value)} for name, value in parameters.items()
    }
    return {**tree, "parameters": texts}


def _too_deep(where: str) -> UserError:
    return UserError(f"{where} is nested too deeply", "fix it; the format is Triton's ModelConfig")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- what follows from it --------------------------------------------------------------------------------------------


def parameter(config: Any, name: str, default: str = "") -> str:
    return str(config.parameters[name].string_value) if name in config.parameters else default


def facts(config: Any) -> ModelSignature:
    """Return the tensors, with the batch dimension if there is one; raises UserError if the configuration is
    incomplete."""
    if not config.input or not config.output:
        missing = "inputs" if not config.input else "outputs"
        raise UserError(
            f"model {config.name}: the configuration does not list any {missing}", f"list the {missing} in config.pbtxt"
        )
    return ModelSignature(
        inputs=tuple(_spec(config, each, each.optional) for each in config.input),
        outputs=tuple(_spec(config, each, False) for each in config.output),
    )


def _spec(config: Any, tensor: Any, optional: bool) -> TensorSpec:
    short = _called(tensor, "data_type").removeprefix("TYPE_")
    datatype = _BY_TYPE.get(short, short)
    if not tensor.name or datatype not in DATATYPES:
        raise UserError(
            f"model {config.name}: a tensor in the configuration has no name or no data_type",
            "give each tensor a name, a data_type such as TYPE_FP32, and dims",
        )
    if any(size < -1 for size in tensor.dims):
        raise UserError(
            f"model {config.name}: tensor {tensor.name} has invalid dims {list(tensor.dims)}", "use -1 for any size"
        )
    if tensor.HasField("reshape"):
        raise UserError(f"model {config.name}: tensor {tensor.name}: reshape is not supported")
    batch = (-1,) if config.max_batch_size > 0 else ()
    return TensorSpec(tensor.name, datatype, (*batch, *tensor.dims), optional)


def policy(config: Any) -> Policy:
    """Return how the model's requests are queued and batched."""
    kind = config.WhichOneof("scheduling_choice")
    if kind in _UNSUPPORTED:
        raise UserError(f"model {config.name}: {_UNSUPPORTED[kind]}", "use dynamic_batching, or no batching")
    batching = config.dynamic_batching
    limit = batching.default_queue_policy.max_queue_size or _whole(config, "max_queue_size")
    is_batching = kind == "dynamic_batching" and config.max_batch_size > 1
    if not is_batching or config.model_transaction_policy.decoupled:
        return Policy(limit=limit)
    wrong = [size for size in batching.preferred_batch_size if not 0 < size <= config.max_batch_size]
    if wrong:
        raise UserError(
            f"model {config.name}: preferred_batch_size must be from 1 to max_batch_size, {config.max_batch_size} "
            f"(got {wrong[0]})"
        )
    return Policy(
        max_rows=config.max_batch_size,
        batching=True,
        preferred=frozenset(batching.preferred_batch_size),
        delay_ns=batching.max_queue_delay_microseconds * 1000,
        limit=limit,
    )


def timeout_ns(config: Any) -> int:
    """Return how long requests may be queued unless they set their own timeout; 0: no limit."""
    queue = config.dynamic_batching.default_queue_policy
    rejects = (
        queue.timeout_action == queue.DESCRIPTOR.enum_types_by_name["TimeoutAction"].values_by_name["REJECT"].number
    )
    return queue.default_timeout_microseconds * 1000 if rejects else 0


def devices(config: Any, default: str) -> list[str]:
    """Return the device of each instance."""
    found: list[str] = []
    for group in config.instance_group:
        kind = _called(group, "kind")
        if not kind:
            raise UserError(
                f"model {config.name}: unknown instance_group.kind {group.kind}", "use KIND_CPU or KIND_GPU"
            )
        places = {"KIND_CPU": ["cpu"], "KIND_GPU": [f"cuda:{gpu}" for gpu in group.gpus] or ["cuda"]}
        for place in places.get(kind, [default]):
            count = group.count or 1
            if not 1 <= count <= _MOST_INSTANCES - len(found):
                raise UserError(
                    f"model {config.name}: invalid instance_group.count {group.count}",
                    f"use at least 1, and at most {_MOST_INSTANCES} instances per model",
                )
            found += [place] * count
    return found or [default]


def _called(message: Any, field: str) -> str:
    """Return the name of an enum value, or "" if it is unknown."""
    known = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(getattr(message, field))
    return str(known.name) if known is not None else ""


def _whole(config: Any, name: str) -> int:
    text = parameter(config, name, "0")
    if not text.isdecimal():
        raise UserError(f"model {config.name}: parameter {name} must be a whole number (got {text!r})")
    return int(text)
