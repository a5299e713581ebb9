"""A receiver of OTLP over HTTP and gRPC, with the official messages, which keeps what arrives or misbehaves on request."""

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Decide = Callable[[int], int]
"""Returns the HTTP status for the nth message, from 0."""

_GRPC_CODES = {503: grpc.StatusCode.UNAVAILABLE, 400: grpc.StatusCode.INVALID_ARGUMENT}


class Received:
    """What has arrived and was accepted."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self.messages = 0
        self.headers: list[dict[str, str]] = []
        self.traces: list[trace_service.ExportTraceServiceRequest] = []
        self.metrics: list[metrics_service.ExportMetricsServiceRequest] = []

    def take(self, message: Any, headers: dict[str, str]) -> int:
        """Return the status."""
        status = self._decide(self.messages)
        self.messages += 1
        if status == 200:
            is_trace = isinstance(message, trace_service.ExportTraceServiceRequest)
            (self.traces if is_trace else self.metrics).append(message)
            self.headers.append(headers)
        return status

    @property
    def spans(self) -> list[Span]:
        return [span for each in self.traces for r in each.resource_spans for s in r.scope_spans for span in s.spans]

    @property
    def last_metrics(self) -> dict[str, Metric]:
        """The metrics of the latest message, by name."""
        return {m.name: m for r in self.metrics[-1].resource_metrics for s in r.scope_metrics for m in s.metrics}


def accept(number: int) -> int:
    return 200


@contextlib.contextmanager
def http_receiver(decide: Decide = accept, rejected: int = 0, refused: str = "") -> Iterator[tuple[str, Received]]:
    """Run a receiver. `rejected`: spans of each message that it does not take; `refused`: the path that it does not have."""
    received = Received(decide)
    kinds: dict[str, Any] = {
        "/v1/traces": (trace_service.ExportTraceServiceRequest, trace_service.ExportTraceServiceResponse),
        "/v1/metrics": (metrics_service.ExportMetricsServiceRequest, metrics_service.ExportMetricsServiceResponse),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            request, response = kinds[self.path]
            reply = _partial(response(), rejected)
            if self.path.endswith(f"/{refused}"):
                status = 404
            else:
                status = received.take(request.FromString(body), dict(self.headers))
            body = reply.SerializeToString() if status == 200 else b"out of order"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()


def _partial(reply: Any, rejected: int) -> Any:
    if rejected and isinstance(reply, trace_service.ExportTraceServiceResponse):
        reply.partial_success.rejected_spans = rejected
        reply.partial_success.error_message = "too old"
    return reply


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, received: Received, rejected: int) -> None:
        self._received, self._rejected = received, rejected

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - gRPC's name
        _check(self._received.take(request, dict(context.invocation_metadata())), context)
        return _partial(trace_service.ExportTraceServiceResponse(), self._rejected)


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, received: Received) -> None:
        self._received = received

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - gRPC's name
        _check(self._received.take(request, dict(context.invocation_metadata())), context)
        return metrics_service.ExportMetricsServiceResponse()


def _check(status: int, context: grpc.ServicerContext) -> None:
    if status != 200:
        context.abort(_GRPC_CODES[status], "out of order")


@contextlib.contextmanager
def grpc_receiver(decide: Decide = accept, rejected: int = 0) -> Iterator[tuple[str, Received]]:
    received = Received(decide)
    server = grpc.server(ThreadPoolExecutor(4))
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(received, rejected), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(received), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}", received
    finally:
        server.stop(0)


RECEIVERS = {"http": http_receiver, "grpc": grpc_receiver}
