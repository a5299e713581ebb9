"""Queries to a KServe v2 server about itself and its models, over HTTP or gRPC by the URL's scheme.

Each query raises NotOffered if the server does not have it, and UserError if the server reports an error.
"""

import difflib
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from inferometer.apis import APIS
from inferometer.config.schema import Server
from inferometer.errors import CHECK_VERSION, KEY_WANTED, OTHER_GRPC, OTHER_HTTP, UserError, key_remedy
from inferometer.probe import query
from inferometer.probe.connect import Peer
from inferometer.wire import grpc_framing
from inferometer.wire.failures import meaning
from inferometer.wire.kserve import control_requests
from inferometer.wire.kserve.control import (
    IndexEntry,
    ModelConfig,
    ModelMetadata,
    ModelStatistics,
    NotOffered,
    ServerMetadata,
    ShmStatus,
)
from inferometer.wire.kserve.control_requests import ControlRequest

T = TypeVar("T")
Metadata = Mapping[str, str]
"""Headers of a query; over gRPC, its metadata."""


class ModelFacts(msgspec.Struct, frozen=True):
    """What is known about a model before any inference."""

    server: ServerMetadata
    metadata: ModelMetadata
    config: ModelConfig | None = None
    """None: the server does not offer it."""

    @property
    def max_batch(self) -> int:
        """0: the model does not take batches, or the server does not say."""
        return self.config.max_batch_size if self.config is not None else 0


# --- queries ---------------------------------------------------------------------------------------------------------


def live(peer: Peer, headers: Metadata) -> bool:
    return _query(peer, headers, control_requests.live())


def ready(peer: Peer, headers: Metadata) -> bool:
    return _query(peer, headers, control_requests.ready())


def server_metadata(peer: Peer, headers: Metadata) -> ServerMetadata:
    return _query(peer, headers, control_requests.server_metadata())


def model_ready(peer: Peer, headers: Metadata, model: str, version: str = "") -> bool:
    return _query(peer, headers, control_requests.model_ready(model, version))


def model_metadata(peer: Peer, headers: Metadata, model: str, version: str = "") -> ModelMetadata:
    return _query(peer, headers, control_requests.model_metadata(model, version))


def model_config(peer: Peer, headers: Metadata, model: str, version: str = "") -> ModelConfig:
    return _query(peer, headers, control_requests.model_config(model, version))


def repository_index(peer: Peer, headers: Metadata) -> tuple[IndexEntry, ...]:
    return _query(peer, headers, control_requests.repository_index())


def statistics(peer: Peer, headers: Metadata, model: str = "", version: str = "") -> tuple[ModelStatistics, ...]:
    return _query(peer, headers, control_requests.statistics(model, version))


def shm_register(peer: Peer, headers: Metadata, region: str, key: str, byte_size: int) -> None:
    _query(peer, headers, control_requests.shm_register(region, key, byte_size))


def shm_unregister(peer: Peer, headers: Metadata, region: str) -> None:
    _query(peer, headers, control_requests.shm_unregister(region))


def shm_status(peer: Peer, headers: Metadata) -> tuple[ShmStatus, ...]:
    return _query(peer, headers, control_requests.shm_status())


def _query(peer: Peer, headers: Metadata, request: ControlRequest[T]) -> T:
    """Send a query over the peer's protocol and return its typed response."""
    return (_query_grpc if peer.target.grpc else _query_http)(peer, headers, request)


def _query_http(peer: Peer, headers: Metadata, request: ControlRequest[T]) -> T:
    reply = query.http(peer, request.method, request.path, headers, request.body or b"")
    try:
        return control_requests.read_http(request, reply.status, reply.body)
    except UserError as error:
        raise _located(error, peer, f"http_{reply.status}", headers) from None


def _query_grpc(peer: Peer, headers: Metadata, request: ControlRequest[T]) -> T:
    reply = query.grpc(peer, request.rpc_path, [request.message], headers)
    fail = reply.fail
    if fail is not None and not fail.code.startswith("grpc_"):
        raise UserError(
            f"{peer.target.url}: {request.what}: {fail.message or meaning(fail.code)}", "check the server's log"
        )
    status, text = (grpc_framing.status_number(fail.code[5:]), fail.message) if fail is not None else (0, "")
    message = reply.pieces[0][1] if reply.pieces else b""
    try:
        return control_requests.read_grpc(request, status, text, message)
    except UserError as error:
        raise _located(error, peer, fail.code if fail is not None else "", headers) from None


def _located(error: UserError, peer: Peer, code: str, headers: Metadata) -> UserError:
    """The error with the URL, and with the remedy for a missing or wrong API key if that is the reason."""
    return type(error)(f"{peer.target.url}: {error.what}", key_remedy(headers) if code in KEY_WANTED else error.remedy)


# --- discovery -------------------------------------------------------------------------------------------------------


def discover(peer: Peer, headers: Metadata, server: Server) -> ModelFacts:
    """Find the model and what it takes; raises UserError unless the server is live and the model is ready."""
    try:
        return _discover(peer, headers, server)
    except UserError as error:
        error.remedy = error.remedy or "check the server's log"
        raise


def _discover(peer: Peer, headers: Metadata, server: Server) -> ModelFacts:
    url, version = peer.target.url, server.version or ""
    if not _is_live(peer, headers):
        raise UserError(f"{url}: the server reports that it is not live", "wait for it, or check its log")
    about = server_metadata(peer, headers)
    model = server.model or first_ready(peer, headers)
    try:
        metadata = model_metadata(peer, headers, model, version)
    except NotOffered:
        raise
    except UserError as error:
        raise UserError(error.what, error.remedy or _known_models(peer, headers, model, version)) from None
    if not model_ready(peer, headers, model, version):
        raise UserError(f"{url}: the model {model} is not ready", "load it, or wait until the server has loaded it")
    try:
        config = model_config(peer, headers, model, version)
    except NotOffered:
        config = None
    is_tensors = APIS[server.api].request == "tensors"
    if server.stream is False and config is not None and config.decoupled and is_tensors:
        raise UserError(
            f"{url}: the model {model} is decoupled: a request may have any number of responses",
            _how_to_stream(peer, metadata),
        )
    _check_outputs(server, metadata)
    return ModelFacts(about, _with_optional(metadata, config), config)


def _is_live(peer: Peer, headers: Metadata) -> bool:
    """The first query: a server that does not know it speaks another protocol."""
    try:
        return live(peer, headers)
    except NotOffered as error:
        remedy = OTHER_GRPC if peer.target.grpc else OTHER_HTTP
        raise UserError(f"{error.what}: it is not a KServe v2 server", remedy) from None


def _how_to_stream(peer: Peer, metadata: ModelMetadata) -> str:
    """How to measure a decoupled model: text over HTTP, anything else over gRPC."""
    url, is_grpc = peer.target.url, peer.target.grpc
    names = {tensor.name for tensor in (*metadata.inputs, *metadata.outputs)}
    if names >= {"text_input", "text_output"}:
        http = "over its HTTP port: inferometer run http://HOST:PORT" if is_grpc else f"with inferometer run {url}"
        return f"it streams text: measure it {http} --model {metadata.name} --set server.api=generate"
    over = f"streamed: inferometer run {url}" if is_grpc else "over its gRPC port: inferometer run grpc://HOST:PORT"
    return f"measure it {over} --model {metadata.name} --set server.stream=true"


def _check_outputs(server: Server, metadata: ModelMetadata) -> None:
    names = [output.name for output in metadata.outputs]
    for name in server.outputs:
        if names and name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.5)
            suggestion = f"did you mean {near[0]}? " if near else ""
            raise UserError(
                f"the model {metadata.name} has no output {name!r:.60}",
                f"{suggestion}its outputs are {', '.join(names)}",
                "server.outputs",
            )


def _with_optional(metadata: ModelMetadata, config: ModelConfig | None) -> ModelMetadata:
    if config is None or not config.optional:
        return metadata
    inputs = [msgspec.structs.replace(spec, optional=spec.name in config.optional) for spec in metadata.inputs]
    return msgspec.structs.replace(metadata, inputs=tuple(inputs))


def _index(peer: Peer, headers: Metadata) -> tuple[IndexEntry, ...]:
    """The server's models; empty if it does not list them."""
    try:
        return repository_index(peer, headers)
    except UserError:
        return ()


def first_ready(peer: Peer, headers: Metadata) -> str:
    """The model to use if none is named: the first that is ready."""
    entries = _index(peer, headers)
    models = [entry.name for entry in entries if entry.state == "READY"]
    models = models or [entry.name for entry in entries if not entry.state]  # Triton omits the state of unloaded models
    if not models:
        raise UserError(
            f"{peer.target.url}: the server does not list any model that is ready", "name the model: {server.model}"
        )
    return models[0]


def _known_models(peer: Peer, headers: Metadata, model: str, version: str) -> str:
    """The remedy for a model that is not found."""
    entries = _index(peer, headers)
    names = sorted({entry.name for entry in entries})
    if not names:
        return "check the model's name"
    if model in names:
        versions = sorted({entry.version for entry in entries if entry.name == model and entry.version})
        available = f": the server has {', '.join(versions)}" if versions else ""
        return f"{CHECK_VERSION}{available}" if version else f"load {model} into the server"
    near = difflib.get_close_matches(model, names, 1, 0.5)
    return (f"did you mean {near[0]}? " if near else "") + f"the server has {', '.join(names[:20])}"
