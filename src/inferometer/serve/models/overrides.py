"""Overrides fields of a model's configuration with KEY=VALUE: max_batch_size=8,
dynamic_batching.max_queue_delay_microseconds=500, instance_group.count=2, parameters.delay=5ms. A key is a path of
field names.
"""

import difflib
import json
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import ModelConfig

_WHOLE = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_EXAMPLE = "use KEY=VALUE, such as max_batch_size=8 or dynamic_batching.max_queue_delay_microseconds=500"


def override(config: Any, text: str) -> None:
    """Set one KEY=VALUE in `config`; raises UserError if there is no such field or the value does not fit."""
    key, is_given, value = text.partition("=")
    key = key.strip()
    if not is_given or not key:
        raise UserError(f"--config {text!r} has no value", _EXAMPLE)
    _put(config, key.split("."), value.strip(), key)


def check(overrides: tuple[str, ...]) -> None:
    """Raise UserError if the overrides do not fit any configuration."""
    for text in overrides:
        override(ModelConfig(), text)


def _put(message: Any, path: list[str], value: str, key: str) -> None:
    field = message.DESCRIPTOR.fields_by_name.get(path[0])
    if field is None:
        names = [each.name for each in message.DESCRIPTOR.fields]
        near = difflib.get_close_matches(path[0], names)
        raise UserError(
            f"--config {key}: {message.DESCRIPTOR.name} has no field {path[0]!r}",
            f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(names)}",
        )
    if field.message_type is None:
        if len(path) > 1:
            raise UserError(f"--config {key}: {field.name} is a plain value and has no field {path[1]!r}")
        _put_value(message, field, value, key)
    elif field.message_type.GetOptions().map_entry:
        _put_entry(message, field, path[1:], value, key)
    elif len(path) == 1:
        _put_whole(message, field, value, key)
    elif field.is_repeated:
        items = getattr(message, field.name)
        for item in items or [items.add()]:
            _put(item, path[1:], value, key)
    else:
        part = getattr(message, field.name)
        part.SetInParent()
        _put(part, path[1:], value, key)


def _put_value(message: Any, field: FieldDescriptor, value: str, key: str) -> None:
    if not field.is_repeated:
        setattr(message, field.name, _value(field, value, key))
        return
    items = [item.strip() for item in value.strip("[]").split(",") if item.strip()]
    del getattr(message, field.name)[:]
    getattr(message, field.name).extend([_value(field, item, key) for item in items])


def _put_entry(message: Any, field: FieldDescriptor, path: list[str], value: str, key: str) -> None:
    if not path:
        raise UserError(
            f"--config {key}: the name of one of the {field.name} is missing", f"use {field.name}.NAME=VALUE"
        )
    assert field.message_type is not None
    entry = field.message_type.fields_by_name["value"]
    name: Any = ".".join(path)
    if field.message_type.fields_by_name["key"].cpp_type != FieldDescriptor.CPPTYPE_STRING:
        raise UserError(f"--config {key}: this field cannot be overridden", "set it in the model's config.pbtxt")
    if entry.message_type is None:
        getattr(message, field.name)[name] = _value(entry, value, key)
    elif "string_value" in entry.message_type.fields_by_name:
        getattr(message, field.name)[name].string_value = value
    else:
        raise UserError(f"--config {key}: this field cannot be overridden", "set it in the model's config.pbtxt")


def _put_whole(message: Any, field: FieldDescriptor, value: str, key: str) -> None:
    """Set a whole message: dynamic_batching={} enables it with its defaults."""
    try:
        is_empty = json.loads(value or "{}") == {}
    except ValueError:
        is_empty = False
    if field.is_repeated or not is_empty:
        assert field.message_type is not None
        names = [each.name for each in field.message_type.fields]
        raise UserError(
            f"--config {key}: the name of one of its fields is missing",
            f"use {key}.FIELD=VALUE with one of {', '.join(names)}",
        )
    getattr(message, field.name).SetInParent()


def _value(field: FieldDescriptor, value: str, key: str) -> Any:
    if field.cpp_type in _WHOLE:
        least, most = _WHOLE[field.cpp_type]
        try:
            number = int(value)
        except ValueError:
            raise UserError(f"--config {key} must be a whole number (got {value!r})") from None
        if not least <= number <= most:
            raise UserError(f"--config {key} must be from {least} to {most} (got {value})")
        return number
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if value.lower() not in (*_TRUE, *_FALSE):
            raise UserError(f"--config {key} must be true or false (got {value!r})")
        return value.lower() in _TRUE
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        names = {each.name: each.number for each in field.enum_type.values}
        if value not in names:
            raise UserError(f"--config {key} must be one of {', '.join(names)} (got {value!r})")
        return names[value]
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        try:
            return float(value)
        except ValueError:
            raise UserError(f"--config {key} must be a number (got {value!r})") from None
    return value
