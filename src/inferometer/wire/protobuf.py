"""Protocol buffers for any service: descriptor sets become message classes, methods are found by name, JSON becomes bytes.

KServe, server reflection and a service that only its user knows are all read here, in the same way and without generated
code. Each `Schema` has a descriptor pool of its own: the default pool, where generated modules register themselves, is not
touched, so a module that defines the same names can live beside ours. JSON is protobuf's own mapping, with the names that
the .proto file has. Nothing here is made for the hot path: requests are encoded before t=0.
"""

import difflib
import functools
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from inferometer.errors import UserError
from inferometer.wire.failures import bounded

OWN = Path(__file__).parents[1] / "proto"
_WELL_KNOWN = "google/protobuf/"
_SHOWN = 8
"""Names that an error message lists at most."""


class Method(msgspec.Struct, frozen=True):
    path: str
    """/pkg.Service/Method, as gRPC's :path has it."""
    input: type[Any]
    """The request's message class."""
    output: type[Any]
    client_streaming: bool
    server_streaming: bool


class Schema:
    """The messages and services of some descriptor sets."""

    def __init__(self, files: Sequence[descriptor_pb2.FileDescriptorProto]) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        self._messages: dict[str, Descriptor] = {}
        self._methods: dict[str, Any] = {}
        for file in files:
            self._add(file)

    def _add(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        try:
            self._pool.AddSerializedFile(file.SerializeToString())
            found = self._pool.FindFileByName(file.name)
        except (TypeError, KeyError) as error:
            raise UserError(f"{file.name}: the descriptor set contradicts itself: {bounded(str(error))}") from None
        for one in found.message_types_by_name.values():
            self._messages.update(_with_nested(one))
        for service in found.services_by_name.values():
            for method in service.methods:
                self._methods[f"{service.full_name}/{method.name}"] = method

    @property
    def messages(self) -> list[str]:
        return sorted(self._messages)

    @property
    def methods(self) -> list[str]:
        """pkg.Service/Method, all of them."""
        return sorted(self._methods)

    def message(self, name: str) -> type[Any]:
        """The class of pkg.Message."""
        found = self._messages.get(name.removeprefix("."))
        if found is None:
            raise _unknown("message", name, self._messages)
        return message_factory.GetMessageClass(found)

    def method(self, name: str) -> Method:
        """By pkg.Service/Method, /pkg.Service/Method or pkg.Service.Method."""
        full = method_name(name)
        found = self._methods.get(full)
        if found is None:
            raise _unknown("method", name, self._methods)
        return Method(
            path=f"/{full}",
            input=message_factory.GetMessageClass(found.input_type),
            output=message_factory.GetMessageClass(found.output_type),
            client_streaming=found.client_streaming,
            server_streaming=found.server_streaming,
        )


def method_name(name: str) -> str:
    """pkg.Service/Method, however it was written."""
    name = name.removeprefix("/")
    if "/" in name:
        return name
    service, _, method = name.rpartition(".")
    return f"{service}/{method}"


def _with_nested(one: Descriptor) -> Iterator[tuple[str, Descriptor]]:
    yield one.full_name, one
    for nested in one.nested_types:
        yield from _with_nested(nested)


def _unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """That there is no such thing, and those that may have been meant."""
    names = sorted(known)
    if not names:
        return UserError(
            f"there is no {kind} {name!r}: the descriptors have no {kind}s at all", "check the .proto file"
        )
    return UserError(f"there is no {kind} {name!r}", _meant(name, names))


def _meant(name: str, names: Sequence[str]) -> str:
    last = _last(name)
    near = [one for one in names if _last(one) == last] or difflib.get_close_matches(name.removeprefix("/"), names)
    return f"did you mean {_listed(near, 'or')}?" if near else f"there is {_listed(names, 'and')}"


def _last(name: str) -> str:
    return name.replace("/", ".").rpartition(".")[2].lower()


def _listed(names: Sequence[str], conjunction: str) -> str:
    if len(names) > _SHOWN:
        return f"{', '.join(names[:_SHOWN])} {conjunction} {len(names) - _SHOWN} more"
    return f" {conjunction} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# --- descriptor sets -------------------------------------------------------------------------------------------------


def load(
    *sources: str | Path | bytes, include: Sequence[str | Path] = (), called: str = "the descriptor set"
) -> Schema:
    """The schema of descriptor sets: their bytes (`called` so in messages), files that hold them, or .proto files, which are
    compiled."""
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for source in sources:
        for file in _files(source, include, called):
            if files.setdefault(file.name, file) != file:
                raise UserError(f"two descriptor sets have different files of the name {file.name}", "load one of them")
    return Schema(_in_order(files))


@functools.cache
def own(name: str) -> Schema:
    """The schema that Inferometer brings along: "kserve", "reflection", "reflection_v1alpha" or "health"."""
    path = OWN / f"{name}.binpb"
    if not path.is_file():
        raise UserError(f"{path} is missing: the build makes it, and this copy was not built", "run pip install -e .")
    return load(path)


def _files(
    source: str | Path | bytes, include: Sequence[str | Path], called: str
) -> Sequence[descriptor_pb2.FileDescriptorProto]:
    shown = called if isinstance(source, bytes) else str(source)
    if isinstance(source, bytes):
        data = source
    elif Path(source).suffix == ".proto":
        data = compile(source, include)
    else:
        data = _read(Path(source))
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    except message.DecodeError:
        files = None
    if not files or not all(file.name for file in files):
        raise UserError(
            f"{shown} is not a descriptor set",
            "give a .proto file, or make one with protoc --include_imports --descriptor_set_out=FILE",
        )
    return files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", "check the path") from None


def _in_order(files: dict[str, descriptor_pb2.FileDescriptorProto]) -> list[descriptor_pb2.FileDescriptorProto]:
    """Each file after those that it imports: the order in which a pool takes them."""
    ordered: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    waiting = list(reversed(files.values()))
    entered: set[str] = set()
    while waiting:
        file = waiting[-1]
        missing = [name for name in file.dependency if name not in ordered]
        if file.name in ordered or not missing:
            ordered.setdefault(file.name, waiting.pop())
        elif file.name in entered:
            raise UserError(f"{file.name} imports itself, by way of {missing[0]}")
        else:
            entered.add(file.name)
            waiting += [_imported(name, file.name, files) for name in missing]
    return list(ordered.values())


def _imported(
    name: str, importer: str, files: dict[str, descriptor_pb2.FileDescriptorProto]
) -> descriptor_pb2.FileDescriptorProto:
    if name in files:
        return files[name]
    if name.startswith(_WELL_KNOWN):
        try:  # protobuf has them itself; sets made by others often leave them out
            module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        except ImportError:
            pass
    raise UserError(
        f"the descriptor set has {importer} but not {name}, which that imports", "make it with protoc --include_imports"
    )


# --- .proto files ----------------------------------------------------------------------------------------------------


def compile(proto: str | Path, include: Sequence[str | Path] = ()) -> bytes:
    """The descriptor set of a .proto file and of all that it imports; imports are looked for in `include`, then beside it."""
    path = Path(proto)
    if not path.is_file():
        raise UserError(f"{path}: there is no such file", "check the path of the .proto file")
    try:
        from grpc_tools import protoc  # type: ignore[import-untyped] # noqa: PLC0415 - an extra
    except ImportError:
        raise UserError(
            f"{path}: compiling a .proto file needs grpcio-tools, which is not installed",
            "pip install 'inferometer[proto]', or give a descriptor set that protoc made",
        ) from None
    folders = [*map(Path, include), path.parent, Path(protoc.__file__).parent / "_proto"]
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, "set.binpb")
        options = [*(f"-I{folder.absolute()}" for folder in folders), "--include_imports"]
        with _stderr_into(Path(scratch, "said")) as said:
            failed = protoc.main(["protoc", *options, f"--descriptor_set_out={made}", str(path.absolute())])
        if failed:
            raise _refused(path, said.read_text("utf-8", "replace"))
        return made.read_bytes()


@contextmanager
def _stderr_into(path: Path) -> Iterator[Path]:
    """What is written to stderr goes to a file: protoc runs in this process and knows no other place for its errors."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield path
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _refused(path: Path, said: str) -> UserError:
    errors = [line for line in said.splitlines() if line.strip() and "warning:" not in line]
    what = "; ".join(line.removeprefix(f"{path.absolute().parent}{os.sep}") for line in errors[:3])
    if "File not found" in said or "was not found" in said:
        return UserError(f"{path} does not compile: {what}", "name the folder that its imports are relative to")
    return UserError(f"{path} does not compile: {what or 'protoc did not say why'}", "mend the .proto file")


# --- JSON and bytes --------------------------------------------------------------------------------------------------


def to_bytes(method: Method, value: Any) -> bytes:
    """A request of `method`: from a JSON value, or from bytes, which must be such a message already."""
    return encode(method.input, value)


def to_json(method: Method, data: bytes) -> Any:
    """An answer of `method` as a JSON value."""
    return decode(method.output, data)


def encode(kind: type[Any], value: Any) -> bytes:
    """A JSON value as the bytes of a message; equal values give equal bytes. Bytes are checked and returned as they are."""
    if isinstance(value, bytes):
        parse(kind, value)
        return value
    made, name = kind(), kind.DESCRIPTOR.full_name
    try:
        _check_message(kind.DESCRIPTOR, value, kind.DESCRIPTOR.name)
        json_format.ParseDict(value, made, descriptor_pool=kind.DESCRIPTOR.file.pool)
        data: bytes = made.SerializeToString(deterministic=True)
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


_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


def _check_message(kind: Descriptor, value: Any, where: str) -> None:
    """What protobuf's own reader of JSON lets pass or complains of without a name."""
    if kind.full_name.startswith("google.protobuf."):
        return  # these have a JSON of their own
    if not isinstance(value, dict):
        raise UserError(f"{where} is an object with the fields of {kind.full_name}, not {_short(value)}")
    fields = {name: field for field in kind.fields for name in (field.name, field.json_name)}
    for key, item in value.items():
        if key in fields:
            _check_field(fields[key], item, f"{where}.{key}")
        elif not (isinstance(key, str) and key.startswith("[")):  # [pkg.name] is an extension
            names = [field.name for field in kind.fields]
            raise UserError(
                f"{where}: {kind.full_name} has no field {key!r}",
                _meant(str(key), names) if names else "it has no fields: write {}",
            )


def _check_field(field: FieldDescriptor, item: Any, where: str) -> None:
    if item is None:  # JSON's way to leave a field out
        return
    if not field.is_repeated:
        _check_item(field, item, where)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not isinstance(item, dict):
            raise UserError(f"{where} is a map: an object, not {_short(item)}")
        for key, one in item.items():
            _check_item(field.message_type.fields_by_name["value"], one, f"{where}[{key}]")
    elif isinstance(item, list | tuple):
        for i, one in enumerate(item):
            _check_item(field, one, f"{where}[{i}]")
    else:
        raise UserError(f"{where} is repeated: a list, not {_short(item)}")


def _check_item(field: FieldDescriptor, item: Any, where: str) -> None:
    if field.message_type is not None:
        _check_message(field.message_type, item, where)
    elif field.type == field.TYPE_STRING and not isinstance(item, str):
        raise UserError(f"{where} is text, not {_short(item)}")
    elif field.type == field.TYPE_BYTES and not (isinstance(item, str) and _BASE64.fullmatch(item)):
        raise UserError(f"{where} is bytes, which JSON has as base64 text, not {_short(item)}")


def _short(value: Any) -> str:
    return repr(value)[:40]


def decode(kind: type[Any], data: bytes, defaults: bool = False) -> Any:
    """The bytes of a message as a JSON value, with the names of the .proto file; `defaults`: zeros and empty ones too."""
    read = parse(kind, data)
    try:
        return json_format.MessageToDict(
            read,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=defaults,
            descriptor_pool=kind.DESCRIPTOR.file.pool,
        )
    except (json_format.Error, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the {kind.DESCRIPTOR.full_name} cannot be shown as JSON: {bounded(str(error))}") from None


def parse(kind: type[Any], data: bytes) -> Any:
    """The message that `data` is; UserError where it is none."""
    try:
        return kind.FromString(data)
    except message.DecodeError as error:
        raise UserError(
            f"{len(data)} bytes are no {kind.DESCRIPTOR.full_name}: {bounded(str(error))}; "
            f"they start with {data[:16].hex(' ')}",
            "is it the .proto file that the server uses?",
        ) from None
