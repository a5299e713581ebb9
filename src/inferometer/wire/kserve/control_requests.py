"""The control requests of KServe v2, over HTTP and gRPC: health, metadata, configuration, statistics, shared memory.

A `ControlRequest` has both forms of a request, and how to parse the response: a JSON tree, which a gRPC message is converted to.
`read_http` and `read_grpc` return the typed result (control.py), or raise NotOffered if the server does not have the endpoint, or
UserError with the server's own message. Numbers may arrive as JSON strings: protocol buffers write 64-bit integers that way.
"""

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from inferometer.errors import UserError
from inferometer.wire.failures import MALFORMED, bounded, excerpt
from inferometer.wire.http1 import error_message
from inferometer.wire.kserve.control import (
    BatchStatistics,
    IndexEntry,
    ModelConfig,
    ModelMetadata,
    ModelStatistics,
    NotOffered,
    ServerMetadata,
    ShmStatus,
)

SERVICE = "inference.GRPCInferenceService"
_NO_ENDPOINT = ("", "not found", "method not allowed", "not implemented")
_UNIMPLEMENTED = 12

S = TypeVar("S")
T = TypeVar("T")


class ControlRequest(msgspec.Struct, Generic[T], frozen=True):
    what: str
    """What is requested, for messages: "the statistics of resnet"."""
    path: str
    """HTTP: the path, for GET; with `body`, for POST."""
    rpc: str
    """gRPC: the name of the method."""
    parse: Callable[[Any], T]
    """Reads the JSON of the response; raises KeyError, TypeError or ValueError if it is not as expected."""
    subject: str = ""
    """The model or region that the request is about, if the server may not have one of that name."""
    body: bytes | None = None
    fields: dict[str, Any] = {}
    """gRPC: the request message."""
    part: str = ""
    """gRPC: the field of the response that has what HTTP sends as the whole body."""

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    @property
    def rpc_path(self) -> str:
        return f"/{SERVICE}/{self.rpc}"

    @property
    def message(self) -> bytes:
        """The request as a gRPC message."""
        from inferometer.wire import protobuf  # noqa: PLC0415 - only gRPC needs it, and it takes long to import

        return protobuf.encode(protobuf.bundled("kserve").method(self.rpc_path).input, self.fields)


def model_path(model: str, version: str = "") -> str:
    """/v2/models/M or /v2/models/M/versions/V, with percent-encoded names."""
    return f"/v2/models/{_quoted(model)}" + (f"/versions/{_quoted(version)}" if version else "")


def _quoted(name: str) -> str:
    return quote(name, safe="")


# --- requests --------------------------------------------------------------------------------------------------------


def live() -> ControlRequest[bool]:
    return ControlRequest("the server's health (live)", "/v2/health/live", "ServerLive", _is_healthy)


def ready() -> ControlRequest[bool]:
    return ControlRequest("the server's health (ready)", "/v2/health/ready", "ServerReady", _is_healthy)


def model_ready(model: str, version: str = "") -> ControlRequest[bool]:
    return _about_model(f"the health of {model}", "/ready", "ModelReady", _is_healthy, model, version)


def server_metadata() -> ControlRequest[ServerMetadata]:
    return ControlRequest("the server's metadata", "/v2", "ServerMetadata", lambda tree: _as(ServerMetadata, tree))


def model_metadata(model: str, version: str = "") -> ControlRequest[ModelMetadata]:
    what = f"the metadata of {model}"
    return _about_model(what, "", "ModelMetadata", lambda tree: _as(ModelMetadata, tree), model, version)


def model_config(model: str, version: str = "") -> ControlRequest[ModelConfig]:
    """For a model whose metadata was read before: the model exists then, so any 404 means that the endpoint does not."""
    request = _about_model(f"the configuration of {model}", "/config", "ModelConfig", _config, model, version)
    return msgspec.structs.replace(request, subject="", part="config")


def repository_index() -> ControlRequest[tuple[IndexEntry, ...]]:
    what, path = "the repository's index", "/v2/repository/index"
    return ControlRequest(what, path, "RepositoryIndex", _index, body=b"{}", part="models")


def statistics(model: str = "", version: str = "") -> ControlRequest[tuple[ModelStatistics, ...]]:
    """The statistics of one model, or of all models."""
    what = f"the statistics of {model or 'all models'}"
    return _about_model(what, "/stats", "ModelStatistics", _statistics, model, version)


def shm_register(region: str, key: str, byte_size: int, offset: int = 0) -> ControlRequest[None]:
    """`key` is the name of the memory for shm_open: it starts with a slash."""
    fields = {"key": key, "offset": offset, "byte_size": byte_size}
    what = f"the registration of shared memory {region}"
    return _about_region(what, "Register", _nothing, region, msgspec.json.encode(fields), fields)


def shm_unregister(region: str = "") -> ControlRequest[None]:
    """Unregister one region, or all regions including those of other clients."""
    what = f"the removal of {f'shared memory {region}' if region else 'all shared memory'}"
    return _about_region(what, "Unregister", _nothing, region, b"", {})


def shm_status(region: str = "") -> ControlRequest[tuple[ShmStatus, ...]]:
    """The status of one region, or of all regions."""
    request = _about_region("the status of shared memory", "Status", _shm_status, region, None, {})
    return msgspec.structs.replace(request, part="regions")


def _about_model(
    what: str, end: str, rpc: str, parse: Callable[[Any], T], model: str, version: str
) -> ControlRequest[T]:
    path = (model_path(model, version) if model else "/v2/models") + end
    return ControlRequest(what, path, rpc, parse, model, fields={"name": model, "version": version})


def _about_region(
    what: str, action: str, parse: Callable[[Any], T], region: str, body: bytes | None, fields: dict[str, Any]
) -> ControlRequest[T]:
    path = "/v2/systemsharedmemory" + (f"/region/{_quoted(region)}" if region else "") + f"/{action.lower()}"
    return ControlRequest(what, path, f"SystemSharedMemory{action}", parse, region, body, {"name": region} | fields)


# --- responses -------------------------------------------------------------------------------------------------------


def read_http(request: ControlRequest[T], status: int, body: bytes) -> T:
    """Return the typed result; raises NotOffered or UserError if there is none.

    Of health, status 200 means yes, unless its JSON says otherwise; 400 (Triton) and 503 (MLServer) mean no.
    """
    is_health = request.parse is _is_healthy
    if is_health and status in (400, 503):
        return request.parse({"ready": False})
    if status != 200:
        raise _refusal(request, status, body)
    try:
        tree = json.loads(body) if body.strip() else None
    except MALFORMED as error:
        if is_health:
            return request.parse(None)
        raise _unexpected(request, body, error) from None
    if isinstance(tree, dict) and tree.get("error") and not is_health:
        raise UserError(f"the request for {request.what} failed: {error_message(body)}")
    return _parsed(request, tree, body)


def read_grpc(request: ControlRequest[T], status: int, status_message: str, message: bytes) -> T:
    """Return the typed result from grpc-status, grpc-message and the response message.

    Raises NotOffered or UserError if there is none.
    """
    from inferometer.wire import protobuf  # noqa: PLC0415 - only gRPC needs it, and it takes long to import

    if status == _UNIMPLEMENTED:
        raise NotOffered(f"the server does not offer {request.what} ({bounded(status_message) or 'UNIMPLEMENTED'})")
    if status:
        raise UserError(f"the request for {request.what} failed with gRPC status {status}: {bounded(status_message)}")
    tree = protobuf.decode(protobuf.bundled("kserve").method(request.rpc_path).output, message, defaults=True)
    return _parsed(request, tree.get(request.part) if request.part else tree, message)


def _parsed(request: ControlRequest[T], tree: Any, data: bytes) -> T:
    try:
        return request.parse(tree)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _unexpected(request, data, error) from None


def _unexpected(request: ControlRequest[T], data: bytes, error: Exception) -> UserError:
    reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return UserError(
        f"the request for {request.what} returned an unexpected response: {excerpt(data)} ({reason})",
        "check that it is a KServe v2 server",
    )


def _refusal(request: ControlRequest[T], status: int, body: bytes) -> UserError:
    """Tell a missing endpoint from a missing model: both are a 404, but the second comes with a message of its own."""
    message = error_message(body)
    generic = message.lower().rstrip(".") in _NO_ENDPOINT or not body.lstrip().startswith(b"{")
    if status in (405, 501) or (status == 404 and (generic or not request.subject)):
        return NotOffered(f"the server does not offer {request.what} ({status}{': ' if message else ''}{message})")
    return UserError(f"the request for {request.what} failed with status {status}: {message}")


# --- parsing ---------------------------------------------------------------------------------------------------------


def _as(kind: type[S], tree: Any) -> S:
    """Read a struct from a JSON object, in which null stands for a default and numbers may be text."""
    return msgspec.convert({name: value for name, value in tree.items() if value is not None}, kind, strict=False)


def _is_healthy(tree: Any) -> bool:
    return not (isinstance(tree, dict) and False in (tree.get("live"), tree.get("ready")))


def _nothing(tree: Any) -> None:
    return None


def _config(tree: Any) -> ModelConfig:
    """Read a configuration, which uses the field names of the .proto file over HTTP, too."""
    read = _as(ModelConfig, {"name": tree["name"], "max_batch_size": tree.get("max_batch_size")})
    return msgspec.structs.replace(
        read,
        decoupled=bool((tree.get("model_transaction_policy") or {}).get("decoupled", False)),
        sequence_batching="sequence_batching" in tree,
        labels={one["name"]: one["label_filename"] for one in tree.get("output") or () if one.get("label_filename")},
        optional=tuple(str(one["name"]) for one in tree.get("input") or () if one.get("optional")),
        raw=dict(tree),
    )


def _index(tree: Any) -> tuple[IndexEntry, ...]:
    entries = (_as(IndexEntry, one) for one in tree)  # MLServer adds a prefix to the state over gRPC
    return tuple(msgspec.structs.replace(one, state=one.state.removeprefix("State.")) for one in entries)


def _statistics(tree: Any) -> tuple[ModelStatistics, ...]:
    return tuple(map(_model_statistics, tree["model_stats"]))


def _model_statistics(tree: Any) -> ModelStatistics:
    batches = [_as(BatchStatistics, one | {"size": one["batch_size"]}) for one in tree.get("batch_stats") or ()]
    spent = tree.get("inference_stats") or {}
    return _as(ModelStatistics, spent | tree | {"batches": sorted(batches, key=attrgetter("size"))})


def _shm_status(tree: Any) -> tuple[ShmStatus, ...]:
    """Read a list, or over gRPC a map by name."""
    regions = [tree[name] for name in sorted(tree)] if isinstance(tree, dict) else tree
    return tuple(_as(ShmStatus, {"offset": 0} | one) for one in regions)
