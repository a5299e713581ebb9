"""Asking a KServe v2 server about itself and its models, over HTTP or gRPC by the URL's scheme."""

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from inferometer.apis import APIS
from inferometer.config.schema import Server
from inferometer.errors import CHECK_VERSION, GIVE_KEY, KEY_WANTED, OTHER_GRPC, OTHER_HTTP, UserError
from inferometer.probe import query
from inferometer.probe.roundtrip import Peer
from inferometer.wire import grpc as grpc_wire
from inferometer.wire.failures import meaning
from inferometer.wire.kserve import control, grpc
from inferometer.wire.kserve.control import IndexEntry, ModelConfig, ModelMetadata, NotOffered, ServerMetadata


class ModelFacts(msgspec.Struct, frozen=True):
    """What is known about a model before anything is asked of it."""

    server: ServerMetadata
    metadata: ModelMetadata
    config: ModelConfig | None = None
    """None: the server does not offer it."""

    @property
    def max_batch(self) -> int:
        """0: it takes no batches, or nobody says."""
        return self.config.max_batch_size if self.config is not None else 0


def question(place: Peer, headers: Mapping[str, str], name: str, *arguments: Any) -> Any:
    """The typed answer to one of control.py's questions, by its name; NotOffered where the server has no such thing."""
    target = place.target
    if not target.grpc:
        asked = getattr(control, name)(*arguments)
        # accept-encoding is for inferences
        plain = {key: value for key, value in headers.items() if key.lower() != "accept-encoding"}
        reply = query.http(place, asked.method, asked.path, plain, asked.body)
        return _told(target.url, f"http_{reply.status}", lambda: control.read(asked, reply.status, reply.body))
    call = getattr(grpc, name)(*arguments)
    reply = query.grpc(place, call.path, [call.message], headers)
    if reply.fail is not None and not reply.fail.code.startswith("grpc_"):
        raise UserError(
            f"{target.url}: {call.what}: {reply.fail.message or meaning(reply.fail.code)}", "check the server's log"
        )
    status = grpc_wire.status_number(reply.fail.code[5:]) if reply.fail is not None else 0
    said = reply.fail.message if reply.fail is not None else ""
    message = reply.pieces[0][1] if reply.pieces else b""
    code = reply.fail.code if reply.fail is not None else ""
    return _told(target.url, code, lambda: grpc.read(call, status, said, message))


def _told(url: str, code: str, read: Any) -> Any:
    try:
        return read()
    except UserError as error:
        raise type(error)(f"{url}: {error.what}", GIVE_KEY if code in KEY_WANTED else error.remedy) from None


def discover(place: Peer, headers: Mapping[str, str], server: Server) -> ModelFacts:
    """Is it alive, which model, is that ready, and what does it take?"""
    try:
        return _discover(place, headers, server)
    except UserError as error:
        error.remedy = error.remedy or "look at the server's log"
        raise


def _discover(place: Peer, headers: Mapping[str, str], server: Server) -> ModelFacts:
    url, version = place.target.url, server.version or ""
    if not _is_live(place, headers):
        raise UserError(f"{url}: the server says that it is not live", "wait for it, or look at its log")
    about = question(place, headers, "server_metadata")
    model = server.model or _only_model(place, headers)
    try:
        metadata = question(place, headers, "model_metadata", model, version)
    except NotOffered:
        raise
    except UserError as error:
        raise UserError(error.what, error.remedy or _known_models(place, headers, model, version)) from None
    if not question(place, headers, "model_ready", model, version):
        raise UserError(f"{url}: the model {model} is not ready", "load it, or wait until the server has")
    try:
        config = question(place, headers, "model_config", model, version)
    except NotOffered:
        config = None
    if server.stream is False and config is not None and config.decoupled and APIS[server.api].request == "tensors":
        raise UserError(
            f"{url}: the model {model} is decoupled: a request may have any number of answers",
            _streamed(place, metadata),
        )
    _check_outputs(server, metadata)
    return ModelFacts(about, _with_optional(metadata, config), config)


def _is_live(place: Peer, headers: Mapping[str, str]) -> bool:
    """The first question: a server that does not know it speaks something else."""
    try:
        return bool(question(place, headers, "live"))
    except NotOffered as error:
        remedy = OTHER_GRPC if place.target.grpc else OTHER_HTTP
        raise UserError(f"{error.what}: it is no KServe v2 server", remedy) from None


def _streamed(place: Peer, metadata: ModelMetadata) -> str:
    """How to measure a decoupled model: text over HTTP, and anything over gRPC."""
    url, is_grpc = place.target.url, place.target.grpc
    names = {one.name for one in (*metadata.inputs, *metadata.outputs)}
    if names >= {"text_input", "text_output"}:
        http = "over its HTTP port: inferometer run http://HOST:PORT" if is_grpc else f"with inferometer run {url}"
        return f"it streams text: measure it {http} --model {metadata.name} --set server.api=generate"
    over = f"streamed: inferometer run {url}" if is_grpc else "over its gRPC port: inferometer run grpc://HOST:PORT"
    return f"measure it {over} --model {metadata.name} --set server.stream=true"


def _check_outputs(server: Server, metadata: ModelMetadata) -> None:
    names = [one.name for one in metadata.outputs]
    for name in server.outputs:
        if names and name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.5)
            meant = f"did you mean {near[0]}? " if near else ""
            raise UserError(
                f"server.outputs: the model {metadata.name} has no output {name!r:.60}",
                f"{meant}its outputs are {', '.join(names)}",
            )


def _with_optional(metadata: ModelMetadata, config: ModelConfig | None) -> ModelMetadata:
    if config is None or not config.optional:
        return metadata
    inputs = [msgspec.structs.replace(one, optional=one.name in config.optional) for one in metadata.inputs]
    return msgspec.structs.replace(metadata, inputs=tuple(inputs))


def _index(place: Peer, headers: Mapping[str, str]) -> tuple[IndexEntry, ...]:
    try:
        found: tuple[IndexEntry, ...] = question(place, headers, "repository_index")
    except UserError:
        return ()
    return found


def _only_model(place: Peer, headers: Mapping[str, str]) -> str:
    """The model to take where none is named: the first that is ready."""
    entries = _index(place, headers)
    ready = [entry.name for entry in entries if entry.state == "READY"]
    ready = ready or [entry.name for entry in entries if not entry.state]  # Triton has none for what is not loaded
    if not ready:
        raise UserError(
            f"{place.target.url}: the server lists no model that is ready", "name the model: server.model, or --model"
        )
    return ready[0]


def _known_models(place: Peer, headers: Mapping[str, str], model: str, version: str) -> str:
    """What to do about a model that is not found."""
    entries = _index(place, headers)
    names = sorted({entry.name for entry in entries})
    if not names:
        return "check the model's name"
    if model in names:
        versions = sorted({entry.version for entry in entries if entry.name == model and entry.version})
        there = f": the server has {', '.join(versions)}" if versions else ""
        return f"{CHECK_VERSION}{there}" if version else f"load {model} into the server"
    near = difflib.get_close_matches(model, names, 1, 0.5)
    return (f"did you mean {near[0]}? " if near else "") + f"the server has {', '.join(names[:20])}"
