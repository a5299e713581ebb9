"""Server reflection: asking a gRPC server to describe its services, as a conversation without a socket.

`describe` and `services` are generators: each yields an `Ask`, is sent the answer's bytes, and in the end returns what was
found. Every Ask is a call of its own: a stream that carries one message there and one back. A caller tells that the server
has no such method (UNIMPLEMENTED) by sending None: v1 is tried first, then v1alpha, whose messages are the same.

    conversation = describe("pkg.Service/Method")
    ask = next(conversation)
    while True:
        ask = conversation.send(exchange(ask.path, ask.message))      # StopIteration.value is the descriptor set
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
"""More than any service is made of: a server that names ever new imports is given up."""


class ReflectionQuery(msgspec.Struct, frozen=True):
    path: str
    message: bytes


Files = dict[str, descriptor_pb2.FileDescriptorProto]


def services() -> Generator[ReflectionQuery, bytes | None, list[str]]:
    """The names of the server's services, reflection itself left out."""
    _, answer = yield from _first({"list_services": "*"})
    return _listed(answer)


def describe(wanted: str = "") -> Generator[ReflectionQuery, bytes | None, bytes]:
    """The descriptor set of the service of `wanted` (a method or a service, written in any way), or of all services."""
    if wanted:
        path, files = yield from _one_service(wanted)
    else:
        path, files = yield from _all_services()
    yield from _add_imports(path, files)
    return descriptor_pb2.FileDescriptorSet(file=[files[name] for name in sorted(files)]).SerializeToString()


def _one_service(wanted: str) -> Generator[ReflectionQuery, bytes | None, tuple[str, Files]]:
    symbol, slash, _ = wanted.removeprefix("/").partition("/")
    path, answer = yield from _first({"file_containing_symbol": symbol})
    if _is_unknown(answer) and not slash and "." in symbol:  # pkg.Service.Method: not every server finds a method
        symbol = symbol.rpartition(".")[0]
        answer = yield from _next(path, {"file_containing_symbol": symbol})
    if _is_unknown(answer):
        names = _listed((yield from _next(path, {"list_services": "*"})))
        raise UserError(
            f"the server has no service for {wanted!r}",
            f"it has {', '.join(names)}" if names else "it names no services",
        )
    return path, _files(answer, symbol)


def _all_services() -> Generator[ReflectionQuery, bytes | None, tuple[str, Files]]:
    """A service that the server lists but knows nothing about is left out: it does not stand in the others' way."""
    path, answer = yield from _first({"list_services": "*"})
    files: Files = {}
    for symbol in _listed(answer):
        answer = yield from _next(path, {"file_containing_symbol": symbol})
        if not _is_unknown(answer):
            files |= _files(answer, symbol)
    if not files:
        raise UserError("the server describes no service", _REMEDY)
    return path, files


# --- the messages ----------------------------------------------------------------------------------------------------


def _first(request: dict[str, str]) -> Generator[ReflectionQuery, bytes | None, tuple[str, Any]]:
    """The path that the server knows, and its answer there."""
    message = protobuf.encode(_request_class(), request)
    for path in PATHS:
        data = yield ReflectionQuery(path, message)
        if data is not None:
            return path, _answer(data)
    raise UserError("the server does not offer reflection, so it cannot be asked for its methods", _REMEDY)


def _next(path: str, request: dict[str, str]) -> Generator[ReflectionQuery, bytes | None, Any]:
    data = yield ReflectionQuery(path, protobuf.encode(_request_class(), request))
    if data is None:
        raise UserError("the server offered reflection and then did not know it any more", _REMEDY)
    return _answer(data)


def _request_class() -> type[Any]:
    return protobuf.own("reflection").message("grpc.reflection.v1.ServerReflectionRequest")


def _answer(data: bytes) -> Any:
    return protobuf.parse(protobuf.own("reflection").message("grpc.reflection.v1.ServerReflectionResponse"), data)


def _listed(answer: Any) -> list[str]:
    if not answer.HasField("list_services_response"):
        raise _refusal("list its services", answer)
    names = sorted({service.name for service in answer.list_services_response.service})
    return [name for name in names if not name.startswith("grpc.reflection.")]


def _files(answer: Any, what: str) -> Files:
    if not answer.HasField("file_descriptor_response"):
        raise _refusal(f"describe {what}", answer)
    try:
        read = descriptor_pb2.FileDescriptorProto.FromString
        files = [read(data) for data in answer.file_descriptor_response.file_descriptor_proto]
    except DecodeError as error:
        raise UserError(
            f"the server's description of {what} is no descriptor: {bounded(str(error))}", _REMEDY
        ) from None
    return {file.name: file for file in files}


def _refusal(what: str, answer: Any) -> UserError:
    if answer.HasField("error_response"):
        error = answer.error_response
        return UserError(
            f"asked to {what}, the server answered: {bounded(error.error_message)} (status {error.error_code})", _REMEDY
        )
    return UserError(f"asked to {what}, the server answered something else", _REMEDY)


def _is_unknown(answer: Any) -> bool:
    return bool(answer.HasField("error_response") and answer.error_response.error_code == _NOT_FOUND)


# --- imports ---------------------------------------------------------------------------------------------------------


def _add_imports(path: str, files: Files) -> Generator[ReflectionQuery, bytes | None, None]:
    """Ask for each imported file that did not come along."""
    waiting = _imports(files)
    asked: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in files or name in asked:
            continue
        asked.add(name)
        if len(asked) > _MAX_FILES:
            raise UserError(f"the server's description has more than {_MAX_FILES} files", _REMEDY)
        answer = yield from _next(path, {"file_by_filename": name})
        if name.startswith("google/protobuf/") and answer.HasField("error_response"):
            continue  # protobuf has them itself
        found = _files(answer, name)
        if name not in found:
            raise UserError(f"asked for the file {name}, the server described {', '.join(found) or 'none'}", _REMEDY)
        files.update(found)
        waiting += _imports(found)


def _imports(files: Files) -> list[str]:
    return sorted({name for file in files.values() for name in file.dependency}, reverse=True)
