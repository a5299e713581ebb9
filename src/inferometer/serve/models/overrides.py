"""Overrides fields of a model's configuration with KEY=VALUE: max_batch_size=8,
dynamic_batching.max_queue_delay_microseconds=500, instance_group.count=2, parameters.delay=5ms. A key is a path of
field names.
"""

from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor as Field

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.wire.protobuf.schema import suggestion

_EXAMPLE = "use KEY=VALUE, such as max_batch_size=8 or dynamic_batching.max_queue_delay_microseconds=500"
_KINDS = {
    Field.CPPTYPE_INT32: "a whole number from -2147483648 to 2147483647",
    Field.CPPTYPE_INT64: "a whole number of at most 64 bits",
    Field.CPPTYPE_UINT32: "a whole number from 0 to 4294967295",
    Field.CPPTYPE_UINT64: "a whole number from 0",
    Field.CPPTYPE_BOOL: "true or false", Field.CPPTYPE_FLOAT: "a number", Field.CPPTYPE_DOUBLE: "a number",
}  # fmt: skip


def override(config: Any, text: str) -> None:
    """Set one KEY=VALUE in `config`; raises UserError if there is no such field or the value does not fit."""
    key, is_given, value = (part.strip() for part in text.partition("="))
    if not is_given or not key:
        raise UserError(f"--config {text!r} has no value", _EXAMPLE)
    _put(config, key.split("."), value, f"--config {key}")


def check(overrides: tuple[str, ...]) -> None:
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
