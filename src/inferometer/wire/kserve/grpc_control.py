"""The control requests of KServe v2 over gRPC.

A `ControlCall` is a request of http_control.py in its gRPC form. Responses are converted to the JSON trees that HTTP servers
send, so that http_control.py parses both.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from inferometer.errors import UserError
from inferometer.wire.failures import bounded
from inferometer.wire.kserve import http_control
from inferometer.wire.kserve.control import (
    IndexEntry,
    ModelConfig,
    ModelMetadata,
    ModelStatistics,
    NotOffered,
    ServerMetadata,
    ShmStatus,
)
from inferometer.wire.kserve.grpc import SERVICE
from inferometer.wire.kserve.http_control import ControlRequest

T = TypeVar("T")

_UNIMPLEMENTED = 12


class ControlCall(msgspec.Struct, Generic[T], frozen=True):
    what: str
    """What is requested, for messages."""
    path: str
    message: bytes
    parse: Callable[[bytes], T]
    """Reads the response message."""


def read(call: ControlCall[T], status: int, status_message: str, message: bytes) -> T:
    """Return the typed result from grpc-status, grpc-message and the response message.

    Raises NotOffered or UserError if there is none.
    """
    if status == _UNIMPLEMENTED:
        raise NotOffered(f"the server does not offer {call.what} ({bounded(status_message) or 'UNIMPLEMENTED'})")
    if status:
        raise UserError(f"the request for {call.what} failed with gRPC status {status}: {bounded(status_message)}")
    return call.parse(message)


def live() -> ControlCall[bool]:
    return _call("ServerLive", {}, http_control.live(), _flag("live"))


def ready() -> ControlCall[bool]:
    return _call("ServerReady", {}, http_control.ready(), _flag("ready"))


def model_ready(model: str, version: str = "") -> ControlCall[bool]:
    return _call("ModelReady", _model(model, version), http_control.model_ready(model, version), _flag("ready"))


def server_metadata() -> ControlCall[ServerMetadata]:
    request = http_control.server_metadata()
    return _call("ServerMetadata", {}, request, request.parse)


def model_metadata(model: str, version: str = "") -> ControlCall[ModelMetadata]:
    request = http_control.model_metadata(model, version)
    return _call("ModelMetadata", _model(model, version), request, request.parse)


def model_config(model: str, version: str = "") -> ControlCall[ModelConfig]:
    request = http_control.model_config(model, version)
    return _call("ModelConfig", _model(model, version), request, lambda tree: request.parse(tree["config"]))


def repository_index() -> ControlCall[tuple[IndexEntry, ...]]:
    request = http_control.repository_index()
    return _call("RepositoryIndex", {}, request, lambda tree: request.parse(tree["models"]))


def statistics(model: str = "", version: str = "") -> ControlCall[tuple[ModelStatistics, ...]]:
    """The statistics of one model, or of all models."""
    request = http_control.statistics(model, version)
    return _call("ModelStatistics", _model(model, version), request, request.parse)


def shm_register(region: str, key: str, byte_size: int, offset: int = 0) -> ControlCall[None]:
    request = http_control.shm_register(region, key, byte_size, offset)
    fields = {"name": region, "key": key, "offset": offset, "byte_size": byte_size}
    return _call("SystemSharedMemoryRegister", fields, request, request.parse)


def shm_unregister(region: str = "") -> ControlCall[None]:
    """Unregister one region, or all regions including those of other clients."""
    request = http_control.shm_unregister(region)
    return _call("SystemSharedMemoryUnregister", {"name": region}, request, request.parse)


def shm_status(region: str = "") -> ControlCall[tuple[ShmStatus, ...]]:
    """The status of one region, or of all regions."""
    request = http_control.shm_status(region)
    return _call(
        "SystemSharedMemoryStatus",
        {"name": region},
        request,
        lambda tree: request.parse([tree["regions"][name] for name in sorted(tree["regions"])]),
    )


def _call(
    method_name: str, fields: dict[str, Any], request: ControlRequest[T], parse: Callable[[Any], T]
) -> ControlCall[T]:
    """Make the gRPC form of `request`; `parse` reads the response as a JSON tree."""
    from inferometer.wire import protobuf  # noqa: PLC0415 - only gRPC needs it, and it takes long to import

    method = protobuf.bundled("kserve").method(f"{SERVICE}/{method_name}")

    def parse_message(data: bytes) -> T:
        tree = protobuf.decode(method.output, data, defaults=True)
        try:
            return parse(tree)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the request for {request.what} returned an unexpected response: {error}") from None

    return ControlCall(request.what, method.path, protobuf.encode(method.input, fields), parse_message)


def _model(name: str, version: str) -> dict[str, Any]:
    return {"name": name, "version": version}


def _flag(name: str) -> Callable[[Any], bool]:
    return lambda tree: bool(tree[name])
