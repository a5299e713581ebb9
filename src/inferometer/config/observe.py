"""The sections `observe`, what to record beside a run, and `export`, where to send live figures."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from msgspec import Meta, field

from inferometer.config.fields import Seconds, Section


class PromQL(Section):
    url: Annotated[
        str, Meta(description="Base URL of the Prometheus server, or of a managed one: `http://127.0.0.1:9090`.")
    ]
    match: Annotated[
        str,
        Meta(
            description='Labels of the series to read, as in PromQL: `job="vllm", namespace="prod"`. Without it, every model server that this Prometheus scrapes is counted.'
        ),
    ] = ""
    queries: Annotated[
        dict[str, str],
        Meta(
            description="PromQL expressions to evaluate over the run, every `observe.interval`, by the name of the series that they become (source `promql` in series.parquet)."
        ),
    ] = field(default_factory=dict)
    headers: Annotated[dict[str, str], Meta(description="Additional request headers. Their values are not stored.")] = (
        field(default_factory=dict)
    )
    token_env: Annotated[
        str | None, Meta(description="Environment variable that holds a bearer token. The token is not stored.")
    ] = None
    token_file: Annotated[str | None, Meta(description="File that holds a bearer token. The token is not stored.")] = (
        None
    )


class Observe(Section):
    prometheus: Annotated[
        Literal["auto"] | list[str],
        Meta(
            description="Prometheus endpoints to scrape during the run; without a path, `/metrics` is added. `auto`: the `/metrics` of each measured server (Triton at its usual ports: port 8002), if it has one and `observe.promql` is not set. `[]`: none. A server that both a list and `observe.promql` read counts once if it reports the start of its process."
        ),
    ] = "auto"
    promql: Annotated[
        PromQL | None,
        Meta(description="A Prometheus server to read the measured server's metrics from, after the run."),
    ] = None
    processes: Annotated[
        list[int | str],
        Meta(
            description="Server processes on this machine whose CPU, memory and disk I/O to record with those of their children: process ids, or names of programs, scripts or Python modules, such as `vllm`; all processes with that name count. The network cannot be counted by process."
        ),
    ] = field(default_factory=list)
    host: Annotated[bool, Meta(description="Record CPU, memory, network and disk use of this machine.")] = True
    gpu: Annotated[
        Literal["auto"] | bool,
        Meta(
            description="Record the NVIDIA GPUs of this machine. `auto`: if there are any and the extra `gpu` is installed. true: it is an error if there are none."
        ),
    ] = "auto"
    interval: Annotated[Seconds, Meta(description="Time between two samples, of everything above.")] = Seconds(1)


NO_OBSERVERS: Mapping[str, object] = MappingProxyType({"prometheus": [], "host": False, "gpu": False})
"""The section `observe` of a run beside which nothing is recorded, so that nothing disturbs it."""


class Otlp(Section):
    url: Annotated[
        str,
        Meta(
            description="OTLP receiver: `http://127.0.0.1:4318` for HTTP, `grpc://127.0.0.1:4317` for gRPC (`https://`, `grpcs://` with TLS). The environment variables OTEL_* are not used."
        ),
    ]
    spans: Annotated[bool, Meta(description="Send one span per request.")] = True
    metrics: Annotated[bool, Meta(description="Send the metrics of `--metrics-port`.")] = True
    traceparent: Annotated[
        bool,
        Meta(
            description="Send each request with a `traceparent` header, so that the server's spans belong to the request's span. Not with `server.stream: persistent`."
        ),
    ] = False
    headers: Annotated[
        dict[str, str], Meta(description="Additional headers (gRPC: metadata). Their values are not stored.")
    ] = field(default_factory=dict)
    timeout: Annotated[
        Seconds,
        Meta(
            description="For one message to the receiver, and (9 s at most) for all that are left after the run. Spans that are not sent by then are counted as lost."
        ),
    ] = Seconds(5)


class Export(Section):
    metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None,
        Meta(
            description="Port of a live Prometheus endpoint, http://127.0.0.1:PORT/metrics, during the run. 0: a free port."
        ),
    ] = None
    metrics_host: Annotated[
        str,
        Meta(
            min_length=1,
            description="IP address that the live Prometheus endpoint listens on. `0.0.0.0` lets other machines read it, such as a Prometheus that scrapes a pod.",
        ),
    ] = "127.0.0.1"
    otlp: Annotated[Otlp | None, Meta(description="OpenTelemetry: where to send metrics and spans.")] = None
