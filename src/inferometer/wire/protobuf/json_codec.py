"""JSON values <-> the bytes of a message, by protobuf's own JSON mapping, with the field names of the .proto file."""

import re
from typing import Any

from google.protobuf import json_format, message
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from inferometer.errors import UserError
from inferometer.wire.failures import bounded
from inferometer.wire.protobuf.schema import suggestion


def encode(kind: type[Any], value: Any) -> bytes:
    """Encode a JSON value as a message; equal values give equal bytes. Bytes are checked and returned unchanged."""
    if isinstance(value, bytes):
        parse(kind, value)
        return value
    encoded, name = kind(), kind.DESCRIPTOR.full_name
    try:
        _check_message(kind.DESCRIPTOR, value, kind.DESCRIPTOR.name)
        json_format.ParseDict(value, encoded, descriptor_pool=kind.DESCRIPTOR.file.pool)
        data: bytes = encoded.SerializeToString(deterministic=True)
    except (
        json_format.ParseError,
        message.EncodeError,
        AttributeError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise UserError(
            f"the value does not fit {name}: {bounded(str(error))}", "compare it with the .proto file"
        ) from None
    return data


def decode(kind: type[Any], data: bytes, defaults: bool = False) -> Any:
    """Decode a message to a JSON value; `defaults` includes fields that are zero or empty."""
    decoded = parse(kind, data)
    try:
        return json_format.MessageToDict(
            decoded,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=defaults,
            descriptor_pool=kind.DESCRIPTOR.file.pool,
        )
    except (json_format.Error, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the {kind.DESCRIPTOR.full_name} cannot be shown as JSON: {bounded(str(error))}") from None


def parse(kind: type[Any], data: bytes) -> Any:
    """Parse a message of the class `kind`; raises UserError if the bytes are not such a message."""
    try:
        return kind.FromString(data)
    except message.DecodeError as error:
        raise UserError(
            f"{len(data)} bytes are not a valid {kind.DESCRIPTOR.full_name}: {bounded(str(error))}; "
            f"they start with {data[:16].hex(' ')}",
            "check that the server uses the same .proto file",
        ) from None


# --- checks with better messages than protobuf's own -----------------------------------------------------------------

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


def _check_message(kind: Descriptor, value: Any, where: str) -> None:
    """Raise UserError for values that protobuf's JSON parser accepts silently or rejects without naming the field."""
    if kind.full_name.startswith("google.protobuf."):
        return  # the well-known types have a JSON form of their own
    if not isinstance(value, dict):
        raise UserError(f"{where} must be an object with the fields of {kind.full_name}, not {_short(value)}")
    fields = {name: field for field in kind.fields for name in (field.name, field.json_name)}
    for key, item in value.items():
        if key in fields:
            _check_field(fields[key], item, f"{where}.{key}")
        elif not (isinstance(key, str) and key.startswith("[")):  # [pkg.name] is an extension
            names = [field.name for field in kind.fields]
            raise UserError(
                f"{where}: {kind.full_name} has no field {key!r}",
                suggestion(str(key), names) if names else "the message has no fields: write {}",
            )


def _check_field(field: FieldDescriptor, item: Any, where: str) -> None:
    if item is None:  # null in JSON means that the field is not set
        return
    if not field.is_repeated:
        _check_item(field, item, where)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not isinstance(item, dict):
            raise UserError(f"{where} is a map and must be an object, not {_short(item)}")
        for key, one in item.items():
            _check_item(field.message_type.fields_by_name["value"], one, f"{where}[{key}]")
    elif isinstance(item, list | tuple):
        for i, one in enumerate(item):
            _check_item(field, one, f"{where}[{i}]")
    else:
        raise UserError(f"{where} is repeated and must be a list, not {_short(item)}")


def _check_item(field: FieldDescriptor, item: Any, where: str) -> None:
    if field.message_type is not None:
        _check_message(field.message_type, item, where)
    elif field.type == field.TYPE_STRING and not isinstance(item, str):
        raise UserError(f"{where} must be text, not {_short(item)}")
    elif field.type == field.TYPE_BYTES and not (isinstance(item, str) and _BASE64.fullmatch(item)):
        raise UserError(f"{where} is of type bytes and must be base64 text, not {_short(item)}")


def _short(value: Any) -> str:
    return repr(value)[:40]
