"""Makes one OpenTelemetry span of each request that has ended, by the conventions for generative AI.

The messages of OpenTelemetry's protocol are built directly, because that takes 10 us per span; the SDK's own spans take 250 us.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from inferometer import __version__
from inferometer.publish.new_rows import Rows
from inferometer.records import Failure
from inferometer.units import NS
from inferometer.wire.http1 import id_prefix
from inferometer.wire.traceparent import trace_ids

FIRST_TOKEN = "first_token"
"""Name of the event in a span."""

OPERATIONS = {
    "chat": "chat",
    "completions": "text_completion",
    "messages": "chat",
    "embeddings": "embeddings",
    "generate": "text_completion",
}
"""gen_ai.operation.name for each API of language models. The other APIs have no such operation: their spans are called `infer MODEL`,
or by the method."""

_SAMPLED = 1
_COLUMNS = (
    *("id", "intended", "sent", "first_token", "done", "n_in", "n_out"),
    *("stage", "class", "url", "status", "failure", "open_loop"),
)

Scalar = str | int | float
FailureOf = Callable[[int], Failure]
"""Returns what a number in the column `failure` stands for."""


class TracedRun(msgspec.Struct, frozen=True):
    """What the spans of a run say about it."""

    name: str
    """Name of the run's folder."""
    tag: str
    """The run's own word, from which the ids of its traces follow."""
    api: str
    model: str
    method: str
    """gRPC: the method that is called, as `package.Service/Method`. Empty: the API has none."""
    servers: tuple[tuple[str, int], ...]
    """Host and port of each URL."""
    stages: tuple[str, ...]
    """Name of each stage."""
    classes: tuple[str, ...] = ()
    """Name of each traffic class."""
    class_models: tuple[str, ...] = ()
    """Model of each traffic class; empty: the run's model."""
    is_http: bool = True
    """The status of a response is HTTP's."""


class SpanMaker:
    """Turns rows of the spool into messages."""

    def __init__(self, run: TracedRun) -> None:
        self._run = run
        self._ids = trace_ids(run.tag)
        self._id_prefix = id_prefix(run.tag)
        self._started: dict[tuple[int, int, int], Span] = {}  # what requests of a stage, class and URL have in common

    def message(self, rows: Rows, failure_of: FailureOf, wall_offset: int) -> ExportTraceServiceRequest:
        """Return the spans of these rows. `wall_offset` is what the wall clock is ahead of the rows' clock, in ns."""
        message = ExportTraceServiceRequest()
        of_run = message.resource_spans.add(resource=resource(self._run.name))
        spans = of_run.scope_spans.add(scope=scope()).spans
        for row in zip(*(rows[name].tolist() for name in _COLUMNS), strict=True):
            self._fill(spans.add(), row, failure_of, wall_offset)
        return message

    def _fill(self, span: Span, row: Sequence[int], failure_of: FailureOf, wall_offset: int) -> None:
        id, intended, sent, first_token, done, n_in, n_out, stage, class_, url, status, failure, open_loop = row
        start = sent or intended  # a request that was dropped, or had no connection, was never sent
        own = self._ids.of(id).to_bytes(8, "big")
        span.MergeFrom(self._started.get((stage, class_, url)) or self._start(stage, class_, url))
        span.trace_id, span.span_id = self._ids.run + own, own
        span.start_time_unix_nano = start + wall_offset
        span.end_time_unix_nano = max(done, start) + wall_offset
        add = span.attributes.add
        add(key="inferometer.request_id").value.string_value = f"{self._id_prefix}{id:012x}"
        if n_in >= 0:
            add(key="gen_ai.usage.input_tokens").value.int_value = n_in
        if n_out >= 0:
            add(key="gen_ai.usage.output_tokens").value.int_value = n_out
        if sent:
            add(key="inferometer.lag_s").value.double_value = (sent - intended) / NS
        if first_token:
            add(key="inferometer.ttft_s").value.double_value = (first_token - (intended if open_loop else sent)) / NS
            span.events.add(name=FIRST_TOKEN, time_unix_nano=first_token + wall_offset)
        if status and self._run.is_http:
            add(key="http.response.status_code").value.int_value = status
        if failure:
            reason = failure_of(failure)
            add(key="error.type").value.string_value = reason.code
            span.status.code, span.status.message = Status.STATUS_CODE_ERROR, reason.message

    def _start(self, stage: int, class_: int, url: int) -> Span:
        run = self._run
        model = (run.class_models[class_] if class_ >= 0 else "") or run.model
        operation = OPERATIONS.get(run.api)
        host, port = run.servers[url]
        values: dict[str, Scalar] = {
            "server.address": host,
            "server.port": port,
            "inferometer.run": run.name,
            "inferometer.stage": run.stages[stage],
        }
        if operation is not None:
            values |= {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
        if class_ >= 0:
            values["inferometer.class"] = run.classes[class_]
        span = Span(
            name=run.method or f"{operation or 'infer'} {model}",
            kind=Span.SPAN_KIND_CLIENT,
            flags=_SAMPLED,
            attributes=attributes(values),
        )
        self._started[stage, class_, url] = span
        return span


# --- shared with metrics ---------------------------------------------------------------------------------------------


def resource(run: str) -> Resource:
    """Return what sends spans and metrics: this program, in the run with this name."""
    values: dict[str, Scalar] = {"service.name": "inferometer", "service.version": __version__, "inferometer.run": run}
    return Resource(attributes=attributes(values))


def scope() -> InstrumentationScope:
    return InstrumentationScope(name="inferometer", version=__version__)


def attributes(values: Mapping[str, Scalar]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any(value)) for key, value in values.items()]


def _any(value: Scalar) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(int_value=value) if isinstance(value, int) else AnyValue(double_value=value)
