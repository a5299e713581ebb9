"""Checks of a Config that the schema's types cannot express. Each raises UserError with the key at fault."""

from itertools import pairwise

from inferometer.apis import APIS, Api, names, scheme_of
from inferometer.config import rate_expression
from inferometer.config.cost import check_cost
from inferometer.config.data import Data, Images, Messages, Mix, SharedPrefix, Tensors, Trace, Unmixed
from inferometer.config.fields import is_valid_header
from inferometer.config.fleet import check_fleet
from inferometer.config.lengths import check_lengths
from inferometer.config.loads import (
    Bursts,
    Closed,
    Constant,
    Gamma,
    Load,
    Poisson,
    Replay,
    Stages,
    StageSpec,
    has_changing_rate,
    stages_of,
)
from inferometer.config.report import check_percentiles
from inferometer.config.schema import Config, Server
from inferometer.config.storage import check_storage
from inferometer.errors import UserError
from inferometer.units import format_seconds

_SHORTEST_WINDOW = 0.01
_SHORTEST_INTERVAL = 0.01


def check(config: Config) -> None:
    """Raise UserError if parts of the config do not go together."""
    for number, stage in enumerate(stages_of(config.load)):
        _check_stage(stage, f"load.stages.{number}" if isinstance(config.load, Stages) else "load")
    if isinstance(config.load, Stages) and config.load.cut_short and not config.load.drain:
        raise UserError(
            "the next stage must wait for the requests of a stage that was cut short",
            "set {load.drain} to true, or leave it out",
            "load.cut_short",
        )
    if config.abort.window < _SHORTEST_WINDOW:
        raise UserError("the window is too short", "give 10ms or more, such as 10s", "abort.window")
    _check_replay(config)
    _check_headers(config.server.headers, "server.headers")
    if config.sessions.header:
        _check_headers({config.sessions.header: ""}, "sessions.header")
    if config.sessions.token_header:
        _check_headers({config.sessions.token_header: ""}, "sessions.token_header")
    if config.observe.interval < _SHORTEST_INTERVAL:
        raise UserError("the interval is too short", "give 10ms or more, such as 1s", "observe.interval")
    _check_otlp(config)
    if config.client.retry_statuses and not config.client.retries:
        raise UserError("nothing is repeated without client.retries", "give {client.retries}", "client.retry_statuses")
    api = _check_url(config.server)
    _check_server(config.server, api)
    if isinstance(config.data, Mix):
        _check_classes(config, config.data, api)
    else:
        _check_data(config, config.data, api)
    check_percentiles(config.report.percentiles, "report.percentiles")
    if "text" in config.kept and api.request != "text":
        raise UserError(
            f"{api.name} requests are {api.request}, not text",
            f"leave it out, or use {{server.api={' or '.join(names(request='text'))}}}",
            "keep",
        )
    check_lengths(config.data, "data")
    _check_prefixes(config.data, api, "data")
    check_cost(config.cost, api.response == "text", bool(config.server.stream))
    check_storage(config.output, config.storage)
    check_fleet(config.fleet, config.client.processes, config.server.shared_memory)


# --- load ------------------------------------------------------------------------------------------------------------


def _check_stage(stage: StageSpec, key: str) -> None:
    _check_stable(stage, key)
    if not stage.duration and not stage.requests and not isinstance(stage, Replay):
        raise UserError("never ends", f"give {key}.duration (such as 30s) or {key}.requests, more than 0", key)
    if isinstance(stage, Constant | Poisson | Gamma) and isinstance(stage.rate, str):
        rate_expression.parse(stage.rate, f"{key}.rate")
    if has_changing_rate(stage) and not stage.duration:
        raise UserError("missing", "give a duration: the rate changes over it", f"{key}.duration")
    if isinstance(stage, Bursts) and not stage.on:
        raise UserError("must be more than 0", "give the length of a burst", f"{key}.on")


def _check_stable(stage: StageSpec, key: str) -> None:
    if not stage.stable:
        return
    if has_changing_rate(stage) or isinstance(stage, Replay):
        raise UserError("a load that changes cannot be stable", "leave it out, or use a constant load", f"{key}.stable")
    if stage.window < _SHORTEST_WINDOW:
        raise UserError("the window is too short", "give 10ms or more, such as 5s", f"{key}.window")
    if stage.duration and stage.duration < 3 * stage.window:
        raise UserError(
            f"{format_seconds(stage.duration)} is shorter than three windows of {format_seconds(stage.window)}",
            f"raise {key}.duration, or lower {key}.window",
            f"{key}.stable",
        )


def _check_replay(config: Config) -> None:
    """Check that a load that replays a trace has one, and is the only load: request n has the content of the trace's row n."""
    if isinstance(config.load, Stages):
        for number, stage in enumerate(config.load.stages):
            if isinstance(stage, Replay):
                raise UserError(
                    "a trace cannot be one of several stages",
                    "use it alone, as load.type: trace",
                    f"load.stages.{number}.type",
                )
    if not isinstance(config.load, Replay):
        return
    if config.load.unit == "requests":
        raise UserError("the arrivals of a trace are those of its sessions", "leave it out", "load.unit")
    if isinstance(config.data, Trace):
        return
    what = "a trace within a mix has no arrivals of its own" if isinstance(config.data, Mix) else "there is no trace"
    raise UserError(what, "set data.type: trace and data.path, or use another load, such as load.rate", "load.type")


# --- server ----------------------------------------------------------------------------------------------------------


def _check_headers(headers: dict[str, str], key: str) -> None:
    for name, value in headers.items():
        if not is_valid_header(name, value):
            raise UserError(f"{name!r} is not a valid header", "use printable ASCII characters for name and value", key)


def _check_otlp(config: Config) -> None:
    """Check the headers for the receiver of spans, and that each request can have one `traceparent`."""
    otlp = config.export.otlp
    if otlp is None:
        return
    _check_headers(otlp.headers, "export.otlp.headers")
    if not otlp.traceparent:
        return
    if config.server.stream == "persistent":
        raise UserError(
            "requests on a persistent stream share its headers",
            "leave it out, or set {server.stream} to true",
            "export.otlp.traceparent",
        )
    classes = config.data.classes if isinstance(config.data, Mix) else []
    own = {f"data.classes.{number}.headers": class_.headers for number, class_ in enumerate(classes)}
    for key, headers in ({"server.headers": config.server.headers} | own).items():
        if any(name.lower() == "traceparent" for name in headers):
            raise UserError(
                "has a traceparent, and each request already gets its own",
                "leave it out, or {export.otlp.traceparent}",
                key,
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
        f"{api.name} is not available over gRPC", f"use an http:// URL, or {{server.api={over_grpc}}}", "server.api"
    )


def _check_server(server: Server, api: Api) -> None:
    if api.has_method and not server.method:
        raise UserError("missing", "name the method: package.Service/Method", "server.method")
    if server.stream and scheme_of(server.urls[0]) not in api.stream_schemes:
        remedy = "use a grpc:// URL, or {server.api=generate}" if api.request == "tensors" else "leave it out"
        raise UserError(f"{api.name} cannot be streamed over HTTP", remedy, "server.stream")
    if server.stream == "persistent":
        _check_persistent(server, api)
    if server.shared_memory and api.request != "tensors":
        tensor_apis = " or ".join(names(request="tensors"))
        raise UserError(
            f"{api.name} does not send tensors",
            f"leave it out, or use {{server.api={tensor_apis}}}",
            "server.shared_memory",
        )


def _check_persistent(server: Server, api: Api) -> None:
    if api.request != "tensors" or scheme_of(server.urls[0]) != "grpc":
        raise UserError(
            "persistent streams are those of KServe over gRPC",
            "use a grpc:// URL with {server.api=kserve}, or true",
            "server.stream",
        )
    if server.compression != "none":
        raise UserError(
            "requests on a persistent stream are not compressed", "leave {server.compression} out", "server.stream"
        )


# --- data ------------------------------------------------------------------------------------------------------------


def _check_classes(config: Config, mix: Mix, api: Api) -> None:
    """Check each traffic class as if it were alone, and that the classes can be in one run."""
    names: set[str] = set()
    for number, class_ in enumerate(mix.classes):
        key = f"data.classes.{number}"
        if class_.name in names:
            raise UserError(f"{class_.name!r} is the name of another class", "give each class its own", f"{key}.name")
        names.add(class_.name)
        _check_headers(class_.headers, f"{key}.headers")
        if class_.headers and config.server.stream == "persistent":
            raise UserError(
                "requests on a persistent stream share its headers",
                "leave them out, or {server.stream} true",
                f"{key}.headers",
            )
        _check_data(config, class_.data, api, f"{key}.data")
        if (
            class_.model
            and api.path == ""
            and not (api.request == "tensors" and scheme_of(config.server.urls[0]) == "grpc")
        ):
            remedy = "leave it out, and measure each model in a run of its own"
            raise UserError(f"with {api.name}, all requests are for one model", remedy, f"{key}.model")
        if isinstance(class_.data, Tensors) and class_.data.validate:
            remedy = "leave it out, or measure this class in a run of its own"
            raise UserError("the responses of classes are not checked", remedy, f"{key}.data.validate")
        if isinstance(class_.data, Tensors) and class_.data.sequence:
            remedy = "leave it out, or measure this class in a run of its own"
            raise UserError("classes cannot have sequences", remedy, f"{key}.data.sequence")
    if config.server.shared_memory:
        raise UserError("does not go with data.type: mix", "leave it out", "server.shared_memory")


def _check_data(config: Config, data: Unmixed, api: Api, key: str = "data") -> None:
    kind = data.__struct_config__.tag
    if kind not in api.data_types:
        *most, last = (name for name in api.data_types if key == "data" or name != "mix")
        accepted = f"{', '.join(most)} or {last}" if most else last
        other_api = ""
        if isinstance(data, Tensors | Images) and scheme_of(config.server.urls[0]) == "http":
            other_api = "{server.api=kserve} for a tensor server, or "
        elif isinstance(data, Messages):
            other_api = "a grpc:// URL with {server.api=grpc}, or "
        raise UserError(
            f"{kind} does not go with {config.server.api}", f"use {other_api}{key}.type: {accepted}", f"{key}.type"
        )
    _check_prompts(data, key, api)
    if isinstance(data, Messages) and bool(data.messages) == bool(data.path):
        raise UserError(
            "needs either messages or path, and not both", f"give {key}.messages as JSON, or a file as {key}.path", key
        )
    if isinstance(data, Tensors) and data.validate and config.server.shared_memory:
        raise UserError(
            "responses in shared memory are not checked", "leave it out, or {server.shared_memory}", "data.validate"
        )
    if isinstance(data, Tensors) and data.sequence and not isinstance(config.data, Mix):
        length = data.sequence if isinstance(data.sequence, int) else 0  # streams: the file is read later
        _check_sequences(config.load, length, "data.sequence")
        for stage in stages_of(config.load):
            if length and stage.requests % length:
                raise UserError(
                    f"{stage.requests} is not a multiple of the sequence length {length}",
                    f"give whole sequences: a multiple of {length}",
                    "load.requests",
                )


def _check_prefixes(data: object, api: Api, key: str) -> None:
    if isinstance(data, Mix):
        for index, each in enumerate(data.classes):
            _check_prefixes(each.data, api, f"{key}.classes.{index}.data")
    if not isinstance(data, SharedPrefix):
        return
    if data.prefix_as == "system" and api.history != "messages":
        raise UserError(
            f"{api.name} has no system message",
            "leave it out, or use {server.api=chat or messages}",
            f"{key}.prefix_as",
        )
    if data.hit is not None and data.prompts:
        raise UserError(
            "prompts that repeat are cached as a whole, which is more than data.hit",
            "leave it out, so that every request has a question of its own",
            f"{key}.prompts",
        )
    counts = [tier.groups for tier in data.tiers] + [data.groups]
    for index, (count, following) in enumerate(pairwise(counts)):
        if count > following:
            raise UserError(
                f"{count} texts are more than the {following} that continue them",
                "list the broadest tier first",
                f"{key}.tiers.{index}.groups",
            )


def _check_prompts(data: Data, key: str, api: Api) -> None:
    """Check that the API takes prompts of this kind."""
    of_ids = [name for name in ("prompt_as", "of") if getattr(data, name, None) == "ids"]
    if of_ids and not api.takes_ids:
        takes = " or ".join(names(takes_ids=True))
        raise UserError(
            f"{api.name} requests cannot contain token ids", f"use {{server.api={takes}}}", f"{key}.{of_ids[0]}"
        )
    if getattr(data, "chat_template", "ignore") in ("count", "include") and not api.has_chat_template:
        having = " or ".join(names(has_chat_template=True))
        raise UserError(
            f"{api.name} requests have no chat template",
            f"leave it out, or use {{server.api={having}}}",
            f"{key}.chat_template",
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
