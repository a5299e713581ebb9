"""Checks of a Config that the schema's types cannot express. Each raises UserError with the key at fault."""

from inferometer.apis import APIS, Api, names, scheme_of
from inferometer.config.data import Images, Messages, Tensors
from inferometer.config.loads import Bursts, Closed, Load, Ramp, Stages, StageSpec, Steps, stages_of
from inferometer.config.schema import Config, Server
from inferometer.errors import UserError
from inferometer.units import format_seconds

_SHORTEST_WINDOW = 0.01


def check(config: Config) -> None:
    """Raise UserError if parts of the config do not go together."""
    for number, stage in enumerate(stages_of(config.load)):
        _check_stage(stage, f"load.stages.{number}" if isinstance(config.load, Stages) else "load")
    _check_headers(config.server)
    api = _check_url(config.server)
    _check_server(config.server, api)
    _check_data(config, api)


# --- load ------------------------------------------------------------------------------------------------------------


def _check_stage(stage: StageSpec, key: str) -> None:
    _check_stable(stage, key)
    if not stage.duration and not stage.requests:
        raise UserError("never ends", f"give {key}.duration (such as 30s) or {key}.requests, more than 0", key)
    if isinstance(stage, Ramp | Steps | Bursts) and not stage.duration:
        raise UserError("missing", "give a duration: the rate changes over it", f"{key}.duration")
    if isinstance(stage, Bursts) and not stage.on:
        raise UserError("must be more than 0", "give the length of a burst", f"{key}.on")


def _check_stable(stage: StageSpec, key: str) -> None:
    if not stage.stable:
        return
    if isinstance(stage, Ramp | Steps | Bursts):
        raise UserError("a load that changes cannot be stable", "leave it out, or use a constant load", f"{key}.stable")
    if stage.window < _SHORTEST_WINDOW:
        raise UserError("the window is too short", "give 10ms or more, such as 5s", f"{key}.window")
    if stage.duration and stage.duration < 3 * stage.window:
        raise UserError(
            f"{format_seconds(stage.duration)} is shorter than three windows of {format_seconds(stage.window)}",
            f"raise {key}.duration, or lower {key}.window",
            f"{key}.stable",
        )


# --- server ----------------------------------------------------------------------------------------------------------


def _check_headers(server: Server) -> None:
    for name, value in server.headers.items():
        if not (name + value).isprintable() or not (name + value).isascii() or not name or set(name) & set(": "):
            raise UserError(
                f"{name!r} is not a valid header", "use printable ASCII characters for name and value", "server.headers"
            )


def _check_url(server: Server) -> Api:
    """Check that all URLs have one protocol and that the API supports it."""
    if not server.urls:
        raise UserError("the list is empty", "give at least one base URL", "server.url")
    api, schemes = APIS[server.api], {scheme_of(url) for url in server.urls}
    if len(schemes) > 1:
        raise UserError("mixes gRPC and HTTP", "measure one protocol at a time", "server.url")
    if schemes <= set(api.schemes):
        return api
    if "http" in schemes:
        raise UserError(f"{api.name} needs a grpc:// URL", "write grpc://HOST:PORT", "server.api")
    over_grpc = " or ".join(row.name for row in APIS.values() if "grpc" in row.schemes)
    raise UserError(
        f"{api.name} is not available over gRPC", f"use an http:// URL, or {{server.api}} {over_grpc}", "server.api"
    )


def _check_server(server: Server, api: Api) -> None:
    if api.has_method and not server.method:
        raise UserError("missing", "name the method: package.Service/Method", "server.method")
    if server.stream and scheme_of(server.urls[0]) not in api.stream_schemes:
        remedy = "use a grpc:// URL, or {server.api} generate" if api.request == "tensors" else "leave it out"
        raise UserError(f"{api.name} cannot be streamed over HTTP", remedy, "server.stream")
    if server.stream == "persistent":
        _check_persistent(server, api)
    if server.shared_memory and api.request != "tensors":
        tensor_apis = " or ".join(names(request="tensors"))
        raise UserError(
            f"{api.name} does not send tensors",
            f"leave it out, or use {{server.api}} {tensor_apis}",
            "server.shared_memory",
        )


def _check_persistent(server: Server, api: Api) -> None:
    if api.request != "tensors" or scheme_of(server.urls[0]) != "grpc":
        raise UserError(
            "persistent streams are those of KServe over gRPC",
            "use a grpc:// URL with {server.api} kserve, or true",
            "server.stream",
        )
    if server.compression != "none":
        raise UserError(
            "requests on a persistent stream are not compressed", "leave {server.compression} out", "server.stream"
        )


# --- data ------------------------------------------------------------------------------------------------------------


def _check_data(config: Config, api: Api) -> None:
    data, kind = config.data, config.data.__struct_config__.tag
    if kind not in api.data_types:
        *most, last = api.data_types
        accepted = f"{', '.join(most)} or {last}" if most else last
        other_api = ""
        if isinstance(data, Tensors | Images) and scheme_of(config.server.urls[0]) == "http":
            other_api = "{server.api} kserve for a tensor server, or "
        elif isinstance(data, Messages):
            other_api = "a grpc:// URL with {server.api} grpc, or "
        raise UserError(
            f"{kind} does not go with {config.server.api}", f"use {other_api}data.type: {accepted}", "data.type"
        )
    if isinstance(data, Messages) and bool(data.messages) == bool(data.path):
        raise UserError(
            "needs either messages or path, and not both", "give data.messages as JSON, or a file as data.path", "data"
        )
    if isinstance(data, Tensors) and data.validate and config.server.shared_memory:
        raise UserError(
            "responses in shared memory are not checked", "leave it out, or {server.shared_memory}", "data.validate"
        )
    if isinstance(data, Tensors) and data.sequence:
        length = data.sequence if isinstance(data.sequence, int) else 0  # streams: the file is read later
        _check_sequences(config.load, length, "data.sequence")
        for stage in stages_of(config.load):
            if length and stage.requests % length:
                raise UserError(
                    f"{stage.requests} is not a multiple of the sequence length {length}",
                    f"give whole sequences: a multiple of {length}",
                    "load.requests",
                )


def check_streams(config: Config, longest: int) -> None:
    """Check that the load suits the sequences in a data file, whose longest has `longest` requests."""
    if isinstance(config.data, Tensors) and config.data.sequence == "streams":
        _check_sequences(config.load, longest, "data.fill", f"{config.data.file} has sequences: ")


def _check_sequences(load: Load, longest: int, key: str, prefix: str = "") -> None:
    """Check that the load is closed and has room for a sequence per user; a `longest` of 0 is not known yet."""
    for stage in stages_of(load):
        if not isinstance(stage, Closed):
            raise UserError(
                f"{prefix}each request of a sequence waits for the previous response",
                "use load.type: closed; its concurrency is the number of concurrent sequences",
                key,
            )
        needed = longest * stage.concurrency
        if 0 < stage.requests < needed:
            raise UserError(
                f"{prefix}load.requests ({stage.requests}) is less than one sequence of {longest} per user",
                f"give {needed} or more",
                key,
            )
