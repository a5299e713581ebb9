"""The messages and methods of a service, found by name in its descriptors.

Each `Schema` has a descriptor pool of its own. The default pool, where generated modules register themselves, is not touched,
so that a generated module that defines the same names can be loaded in the same process.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor

from inferometer.errors import UserError
from inferometer.wire.failures import bounded

_MAX_LISTED = 8
"""Maximum number of names that an error message lists."""


class Method(msgspec.Struct, frozen=True):
    """A method of a service: its path, and the message classes of its requests and responses."""

    path: str
    """/pkg.Service/Method, the :path of the call."""
    input: type[Any]
    output: type[Any]
    client_streaming: bool
    server_streaming: bool


class Schema:
    """The messages and services of a list of files, in which each file follows those that it imports."""

    def __init__(self, files: Sequence[descriptor_pb2.FileDescriptorProto]) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        self._messages: dict[str, Descriptor] = {}
        self._methods: dict[str, Any] = {}
        for file in files:
            self._add(file)

    def _add(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        try:
            self.pool.AddSerializedFile(file.SerializeToString())
            added = self.pool.FindFileByName(file.name)
        except (TypeError, KeyError) as error:
            raise UserError(f"{file.name}: the descriptor set is inconsistent: {bounded(str(error))}") from None
        for descriptor in added.message_types_by_name.values():
            self._messages.update(_with_nested(descriptor))
        for service in added.services_by_name.values():
            for method in service.methods:
                self._methods[f"{service.full_name}/{method.name}"] = method

    @property
    def messages(self) -> list[str]:
        return sorted(self._messages)

    @property
    def methods(self) -> list[str]:
        """The names of all methods, as pkg.Service/Method."""
        return sorted(self._methods)

    def message(self, name: str) -> type[Any]:
        """Return the class of the message pkg.Message."""
        descriptor = self._messages.get(name.removeprefix("."))
        if descriptor is None:
            raise _unknown("message", name, self._messages)
        return message_factory.GetMessageClass(descriptor)

    def method(self, name: str) -> Method:
        """Look up a method, written as pkg.Service/Method, /pkg.Service/Method or pkg.Service.Method."""
        full_name = method_name(name)
        descriptor = self._methods.get(full_name)
        if descriptor is None:
            raise _unknown("method", name, self._methods)
        return Method(
            path=f"/{full_name}",
            input=message_factory.GetMessageClass(descriptor.input_type),
            output=message_factory.GetMessageClass(descriptor.output_type),
            client_streaming=descriptor.client_streaming,
            server_streaming=descriptor.server_streaming,
        )


def method_name(name: str) -> str:
    """Normalize the name of a method to pkg.Service/Method."""
    name = name.removeprefix("/")
    if "/" in name:
        return name
    service, _, method = name.rpartition(".")
    return f"{service}/{method}"


def _with_nested(descriptor: Descriptor) -> Iterator[tuple[str, Descriptor]]:
    yield descriptor.full_name, descriptor
    for nested in descriptor.nested_types:
        yield from _with_nested(nested)


# --- unknown names ---------------------------------------------------------------------------------------------------


def _unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    names = sorted(known)
    if not names:
        return UserError(
            f"there is no {kind} {name!r}: the descriptors do not contain any {kind}", "check the .proto file"
        )
    return UserError(f"there is no {kind} {name!r}", suggestion(name, names))


def suggestion(name: str, names: Sequence[str]) -> str:
    """Suggest the names most similar to `name`, or list the names that exist."""
    last = _last_part(name)
    similar = [one for one in names if _last_part(one) == last]
    similar = similar or difflib.get_close_matches(name.removeprefix("/"), names)
    return f"did you mean {_joined(similar, 'or')}?" if similar else f"known names: {_joined(names, 'and')}"


def _last_part(name: str) -> str:
    return name.replace("/", ".").rpartition(".")[2].lower()


def _joined(names: Sequence[str], conjunction: str) -> str:
    if len(names) > _MAX_LISTED:
        return f"{', '.join(names[:_MAX_LISTED])} {conjunction} {len(names) - _MAX_LISTED} more"
    return f" {conjunction} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
