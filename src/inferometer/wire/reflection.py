"""Server reflection: queries a gRPC server for the descriptors of its services, as a conversation without a socket.

`describe` and `services` are generators. Each yields a `ReflectionQuery`, is sent the bytes of the response, and finally
returns its result. Every query is a call of its own: a stream with one message in each direction. The caller reports that
the server does not have the method (UNIMPLEMENTED) by sending None: v1 is tried first, then v1alpha, whose messages are
the same.

    conversation = describe("pkg.Service/Method")
    query = next(conversation)
    while True:
        query = conversation.send(call(query.path, query.message))      # StopIteration.value is the descriptor set
"""

from collections.abc import Generator
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from inferometer.errors import UserError
from inferometer.wire import protobuf
from inferometer.wire.failures import bounded

PATHS = (
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)

_REMEDY = "name the .proto file with {server.proto}"
_NOT_FOUND = 5
_MAX_FILES = 4096
"""More files than any service consists of: the limit for a server that keeps naming new imports."""


class ReflectionQuery(msgspec.Struct, frozen=True):
    """One call to make: the method's path and the request message."""

    path: str
    message: bytes


Files = dict[str, descriptor_pb2.FileDescriptorProto]


def services() -> Generator[ReflectionQuery, bytes | None, list[str]]:
    """List the names of the server's services, without the reflection service itself."""
    _, response = yield from _first({"list_services": "*"})
    return _service_names(response)


def describe(wanted: str = "") -> Generator[ReflectionQuery, bytes | None, bytes]:
    """Return the descriptor set of one service, or of all services if `wanted` is empty.

    `wanted` names a method or a service in any of the forms that `protobuf.method_name` accepts.
    """
    if wanted:
        path, files = yield from _one_service(wanted)
    else:
        path, files = yield from _all_services()
    yield from _add_imports(path, files)
    return descriptor_pb2.FileDescriptorSet(file=[files[name] for name in sorted(files)]).SerializeToString()


def _one_service(wanted: str) -> Generator[ReflectionQuery, bytes | None, tuple[str, Files]]:
    symbol, slash, _ = wanted.removeprefix("/").partition("/")
    path, response = yield from _first({"file_containing_symbol": symbol})
    if _is_unknown(response) and not slash and "." in symbol:  # pkg.Service.Method: not every server finds methods
        symbol = symbol.rpartition(".")[0]
        response = yield from _next(path, {"file_containing_symbol": symbol})
    if _is_unknown(response):
        names = _service_names((yield from _next(path, {"list_services": "*"})))
        raise UserError(
            f"the server has no service for {wanted!r}",
            f"its services are {', '.join(names)}" if names else "it lists no services",
        )
    return path, _files(response, symbol)


def _all_services() -> Generator[ReflectionQuery, bytes | None, tuple[str, Files]]:
    """Describe all services, except those that the server lists but cannot describe: the others remain usable."""
    path, response = yield from _first({"list_services": "*"})
    files: Files = {}
    for symbol in _service_names(response):
        response = yield from _next(path, {"file_containing_symbol": symbol})
        if not _is_unknown(response):
            files |= _files(response, symbol)
    if not files:
        raise UserError("the server describes no service", _REMEDY)
    return path, files


# --- messages --------------------------------------------------------------------------------------------------------


def _first(request: dict[str, str]) -> Generator[ReflectionQuery, bytes | None, tuple[str, Any]]:
    """Make the first query; return the path that the server supports, and its response."""
    message = protobuf.encode(_request_class(), request)
    for path in PATHS:
        data = yield ReflectionQuery(path, message)
        if data is not None:
            return path, _parse(data)
    raise UserError("the server does not offer reflection, so its methods cannot be looked up", _REMEDY)


def _next(path: str, request: dict[str, str]) -> Generator[ReflectionQuery, bytes | None, Any]:
    data = yield ReflectionQuery(path, protobuf.encode(_request_class(), request))
    if data is None:
        raise UserError("the server offered reflection at first and then reported it as unimplemented", _REMEDY)
    return _parse(data)


def _request_class() -> type[Any]:
    return protobuf.bundled("reflection").message("grpc.reflection.v1.ServerReflectionRequest")


def _parse(data: bytes) -> Any:
    return protobuf.parse(protobuf.bundled("reflection").message("grpc.reflection.v1.ServerReflectionResponse"), data)


def _service_names(response: Any) -> list[str]:
    if not response.HasField("list_services_response"):
        raise _unexpected("list its services", response)
    names = sorted({service.name for service in response.list_services_response.service})
    return [name for name in names if not name.startswith("grpc.reflection.")]


def _files(response: Any, symbol: str) -> Files:
    if not response.HasField("file_descriptor_response"):
        raise _unexpected(f"describe {symbol}", response)
    try:
        read = descriptor_pb2.FileDescriptorProto.FromString
        files = [read(data) for data in response.file_descriptor_response.file_descriptor_proto]
    except DecodeError as error:
        raise UserError(
            f"the server's description of {symbol} is not a valid descriptor: {bounded(str(error))}", _REMEDY
        ) from None
    return {file.name: file for file in files}


def _unexpected(action: str, response: Any) -> UserError:
    if response.HasField("error_response"):
        error = response.error_response
        return UserError(
            f"the server did not {action}: {bounded(error.error_message)} (status {error.error_code})", _REMEDY
        )
    return UserError(f"the server did not {action}: it sent a different kind of response", _REMEDY)


def _is_unknown(response: Any) -> bool:
    return bool(response.HasField("error_response") and response.error_response.error_code == _NOT_FOUND)


# --- imports ---------------------------------------------------------------------------------------------------------


def _add_imports(path: str, files: Files) -> Generator[ReflectionQuery, bytes | None, None]:
    """Request each imported file that the server did not send along."""
    pending = _imports(files)
    requested: set[str] = set()
    while pending:
        name = pending.pop()
        if name in files or name in requested:
            continue
        requested.add(name)
        if len(requested) > _MAX_FILES:
            raise UserError(f"the server's description has more than {_MAX_FILES} files", _REMEDY)
        response = yield from _next(path, {"file_by_filename": name})
        if name.startswith("google/protobuf/") and response.HasField("error_response"):
            continue  # the protobuf library includes these
        received = _files(response, name)
        if name not in received:
            names = ", ".join(received) or "no file"
            raise UserError(f"the server was queried for the file {name} but described {names}", _REMEDY)
        files.update(received)
        pending += _imports(received)


def _imports(files: Files) -> list[str]:
    return sorted({name for file in files.values() for name in file.dependency}, reverse=True)
