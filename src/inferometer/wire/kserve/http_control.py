"""The control requests of KServe v2 over HTTP: health, metadata, configuration, statistics, shared memory.

A `ControlRequest` says what to send and how to parse the response. `read` returns the typed result (control.py), or raises
NotOffered if the server does not have the endpoint, or UserError with the server's own message. Numbers may arrive as JSON
strings: protocol buffers write 64-bit integers that way.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from inferometer.errors import UserError
from inferometer.records import Spent
from inferometer.tensors import TensorSpec
from inferometer.wire.failures import MALFORMED, excerpt
from inferometer.wire.http1 import error_message
from inferometer.wire.kserve.control import (
    SPENT_FIELDS,
    BatchStatistics,
    IndexEntry,
    ModelConfig,
    ModelMetadata,
    ModelStatistics,
    NotOffered,
    ServerMetadata,
    ShmStatus,
)

T = TypeVar("T")


class ControlRequest(msgspec.Struct, Generic[T], frozen=True):
    what: str
    """What is requested, for messages: "the statistics of resnet"."""
    method: str
    path: str
    body: bytes
    parse: Callable[[Any], T]
    """Reads the JSON of the response; raises KeyError, TypeError or ValueError if it is not as expected."""
    subject: str = ""
    """The model or region that the request is about, if the server may not have one of that name."""


def model_path(model: str, version: str = "") -> str:
    """/v2/models/M or /v2/models/M/versions/V, with percent-encoded names."""
    return f"/v2/models/{_quoted(model)}" + (f"/versions/{_quoted(version)}" if version else "")


def _quoted(name: str) -> str:
    return quote(name, safe="")


# --- requests --------------------------------------------------------------------------------------------------------


def live() -> ControlRequest[bool]:
    return ControlRequest("the server's health (live)", "GET", "/v2/health/live", b"", _is_healthy)


def ready() -> ControlRequest[bool]:
    return ControlRequest("the server's health (ready)", "GET", "/v2/health/ready", b"", _is_healthy)


def model_ready(model: str, version: str = "") -> ControlRequest[bool]:
    path = model_path(model, version) + "/ready"
    return ControlRequest(f"the health of {model}", "GET", path, b"", _is_healthy, model)


def server_metadata() -> ControlRequest[ServerMetadata]:
    return ControlRequest("the server's metadata", "GET", "/v2", b"", _server_metadata)


def model_metadata(model: str, version: str = "") -> ControlRequest[ModelMetadata]:
    return ControlRequest(f"the metadata of {model}", "GET", model_path(model, version), b"", _model_metadata, model)


def model_config(model: str, version: str = "") -> ControlRequest[ModelConfig]:
    """For a model whose metadata was read before: the model exists then, so any 404 means that the endpoint does not."""
    path = model_path(model, version) + "/config"
    return ControlRequest(f"the configuration of {model}", "GET", path, b"", config_from)


def repository_index() -> ControlRequest[tuple[IndexEntry, ...]]:
    return ControlRequest("the repository's index", "POST", "/v2/repository/index", b"{}", _index)


def statistics(model: str = "", version: str = "") -> ControlRequest[tuple[ModelStatistics, ...]]:
    """The statistics of one model, or of all models."""
    path = (model_path(model, version) if model else "/v2/models") + "/stats"
    return ControlRequest(f"the statistics of {model or 'all models'}", "GET", path, b"", _statistics, model)


def shm_register(region: str, key: str, byte_size: int, offset: int = 0) -> ControlRequest[None]:
    """`key` is the name of the memory for shm_open: it starts with a slash."""
    path = _shm_path(region) + "/register"
    body = msgspec.json.encode({"key": key, "offset": offset, "byte_size": byte_size})
    return ControlRequest(f"the registration of shared memory {region}", "POST", path, body, _nothing, region)


def shm_unregister(region: str = "") -> ControlRequest[None]:
    """Unregister one region, or all regions including those of other clients."""
    what = f"the removal of {f'shared memory {region}' if region else 'all shared memory'}"
    return ControlRequest(what, "POST", _shm_path(region) + "/unregister", b"", _nothing, region)


def shm_status(region: str = "") -> ControlRequest[tuple[ShmStatus, ...]]:
    """The status of one region, or of all regions."""
    path = _shm_path(region) + "/status"
    return ControlRequest("the status of shared memory", "GET", path, b"", _shm_status, region)


def _shm_path(region: str) -> str:
    return "/v2/systemsharedmemory" + (f"/region/{_quoted(region)}" if region else "")


# --- responses -------------------------------------------------------------------------------------------------------

_NO_ENDPOINT = ("", "not found", "method not allowed", "not implemented")


def read(request: ControlRequest[T], status: int, body: bytes) -> T:
    """Return the typed result; raises NotOffered or UserError if there is none."""
    if request.parse is _is_healthy:
        return _health(request, status, body)
    if status != 200:
        raise _refusal(request, status, body)
    try:
        tree = json.loads(body) if body.strip() else None
        if isinstance(tree, dict) and tree.get("error"):
            raise UserError(f"the request for {request.what} failed: {error_message(body)}")
        return request.parse(tree)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        start = excerpt(body)
        raise UserError(
            f"the request for {request.what} returned an unexpected response: {start} ({_described(error)})",
            "check that it is a KServe v2 server",
        ) from None


def _described(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _health(request: ControlRequest[T], status: int, body: bytes) -> T:
    """Status 200 means yes, unless its JSON says otherwise; 400 (Triton) and 503 (MLServer) mean no."""
    if status == 200:
        return request.parse(body)
    if status in (400, 503):
        return request.parse(None)
    raise _refusal(request, status, body)


def _refusal(request: ControlRequest[T], status: int, body: bytes) -> UserError:
    """Tell a missing endpoint from a missing model: both are a 404, but the second comes with a message of its own."""
    message = error_message(body)
    generic = message.lower().rstrip(".") in _NO_ENDPOINT or not body.lstrip().startswith(b"{")
    if status in (405, 501) or (status == 404 and (generic or not request.subject)):
        return NotOffered(f"the server does not offer {request.what} ({status}{': ' if message else ''}{message})")
    return UserError(f"the request for {request.what} failed with status {status}: {message}")


# --- parsing ---------------------------------------------------------------------------------------------------------


def whole_number(value: Any) -> int:
    """Read a JSON number, or a string that contains one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _is_healthy(body: bytes | None) -> bool:
    if body is None:
        return False
    try:
        tree = json.loads(body)
    except MALFORMED:
        return True
    return not (isinstance(tree, dict) and False in (tree.get("live"), tree.get("ready")))


def _nothing(tree: Any) -> None:
    return None


def _server_metadata(tree: Any) -> ServerMetadata:
    extensions = tree.get("extensions") or ()
    return ServerMetadata(_text(tree["name"]), _text(tree.get("version") or ""), tuple(map(_text, extensions)))


def _model_metadata(tree: Any) -> ModelMetadata:
    return ModelMetadata(
        name=_text(tree["name"]),
        versions=tuple(map(_text, tree.get("versions") or ())),
        platform=_text(tree.get("platform") or ""),
        inputs=_specs(tree.get("inputs") or ()),
        outputs=_specs(tree.get("outputs") or ()),
    )


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(_text(one["name"]), _text(one["datatype"]), tuple(map(whole_number, one["shape"])))
        for one in tensors
    )


def config_from(tree: Mapping[str, Any]) -> ModelConfig:
    """Read a configuration that uses the field names of the .proto file, as HTTP responses do."""
    return ModelConfig(
        name=_text(tree["name"]),
        max_batch_size=whole_number(tree.get("max_batch_size", 0)),
        decoupled=bool((tree.get("model_transaction_policy") or {}).get("decoupled", False)),
        sequence_batching="sequence_batching" in tree,
        labels={one["name"]: one["label_filename"] for one in tree.get("output") or () if one.get("label_filename")},
        optional=tuple(_text(one["name"]) for one in tree.get("input") or () if one.get("optional")),
        raw=dict(tree),
    )


def _index(tree: Any) -> tuple[IndexEntry, ...]:
    return tuple(
        IndexEntry(
            name=_text(one["name"]),
            version=_text(one.get("version") or ""),
            state=_text(one.get("state") or "").removeprefix("State."),  # MLServer adds the prefix over gRPC
            reason=_text(one.get("reason") or ""),
        )
        for one in tree
    )


def _statistics(tree: Any) -> tuple[ModelStatistics, ...]:
    return tuple(_model_statistics(one) for one in tree["model_stats"])


def _model_statistics(tree: Any) -> ModelStatistics:
    spent = tree.get("inference_stats") or {}
    return ModelStatistics(
        name=_text(tree["name"]),
        version=_text(tree.get("version") or ""),
        inference_count=whole_number(tree.get("inference_count", 0)),
        execution_count=whole_number(tree.get("execution_count", 0)),
        batches=tuple(sorted(map(_batch, tree.get("batch_stats") or ()), key=lambda batch: batch.size)),
        **{name: _spent(spent.get(name)) for name in SPENT_FIELDS},
    )


def _batch(tree: Any) -> BatchStatistics:
    names = ("compute_input", "compute_infer", "compute_output")
    return BatchStatistics(whole_number(tree["batch_size"]), *(_spent(tree.get(name)) for name in names))


def _spent(tree: Any) -> Spent:
    return Spent(whole_number(tree.get("count", 0)), whole_number(tree.get("ns", 0))) if tree else Spent()


def _shm_status(tree: Any) -> tuple[ShmStatus, ...]:
    return tuple(
        ShmStatus(
            _text(one["name"]), _text(one["key"]), whole_number(one.get("offset", 0)), whole_number(one["byte_size"])
        )
        for one in tree
    )
