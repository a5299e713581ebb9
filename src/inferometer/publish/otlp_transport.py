"""Sends OTLP messages to a receiver, over HTTP or gRPC, one at a time and each within a deadline.

Neither transport repeats a message, prints anything, or reads the OTEL_* environment variables: the config alone says where messages go.
TLS uses the usual certificates of the platform (SSL_CERT_FILE; gRPC: GRPC_DEFAULT_SSL_ROOTS_FILE_PATH).
"""

import http.client
import os
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from inferometer import __version__
from inferometer.errors import UserError
from inferometer.wire import target as targets
from inferometer.wire.failures import bounded, tls_reason
from inferometer.wire.target import Target

Message: TypeAlias = ExportTraceServiceRequest | ExportMetricsServiceRequest

_RESPONSES: dict[type[Message], type[ExportTraceServiceResponse | ExportMetricsServiceResponse]] = {
    ExportTraceServiceRequest: ExportTraceServiceResponse,
    ExportMetricsServiceRequest: ExportMetricsServiceResponse,
}
_PATHS: dict[type[Message], str] = {
    ExportTraceServiceRequest: "/v1/traces",
    ExportMetricsServiceRequest: "/v1/metrics",
}
_METHODS: dict[type[Message], str] = {
    ExportTraceServiceRequest: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    ExportMetricsServiceRequest: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_RETRYABLE_HTTP = (429, 502, 503, 504)
"""HTTP statuses for which the protocol says that the message was not processed and may be sent again."""
_MAX_RESPONSE = 64 << 10


class Outcome(NamedTuple):
    """What became of a message."""

    is_received: bool
    rejected: int = 0
    """Spans or data points of it that the receiver did not accept."""
    reason: str = ""
    """Why it was not received, or not all of it."""
    can_retry: bool = False
    """It has certainly not been processed, so sending it again makes no duplicates."""


class Transport(Protocol):
    def send(self, message: Message, timeout: float) -> Outcome:
        """Send a message and wait for the response. Never raises."""
        ...

    def close(self) -> None:
        """Close connections. A message that is being sent fails."""
        ...


def connect(url: str, headers: Mapping[str, str]) -> Transport:
    """Return the transport for `http://host:4318`, `grpc://host:4317` or, with TLS, `https` or `grpcs`. It connects when it sends.

    Raises UserError if the URL is malformed.
    """
    target = parse(url)
    credentials = {"authorization": target.credentials} if target.credentials else {}
    return (_Grpc if target.grpc else _Http)(target, credentials | {n.lower(): v for n, v in headers.items()})


def parse(url: str) -> Target:
    """Parse the URL of a receiver; raises UserError if it is malformed."""
    try:
        for path in _PATHS.values():
            url = url.rstrip("/").removesuffix(path)
        return targets.parse(url)
    except UserError as error:
        remedy = "write http://HOST:4318, https://HOST, grpc://HOST:4317 or grpcs://HOST:4317"
        raise UserError(error.what, remedy, "export.otlp.url") from None


class _Http:
    """OTLP over HTTP. Every message has a connection of its own: there are at most a few per second."""

    def __init__(self, target: Target, headers: dict[str, str]) -> None:
        self._target = target
        self._headers = {
            "content-type": "application/x-protobuf",
            "user-agent": f"inferometer/{__version__}",
            "connection": "close",
        } | headers
        self._tls = ssl.create_default_context() if target.tls else None

    def send(self, message: Message, timeout: float) -> Outcome:
        deadline = time.monotonic() + timeout
        try:
            connection = self._connection(timeout)
            connection.connect()
        except OSError as error:
            return Outcome(False, reason=f"cannot connect: {error_text(error)}", can_retry=True)
        try:
            connection.sock.settimeout(max(deadline - time.monotonic(), 0.001))
            path = self._target.prefix + _PATHS[type(message)]
            connection.request("POST", path, message.SerializeToString(), self._headers)
            response = connection.getresponse()
            body = response.read(_MAX_RESPONSE)
        except TimeoutError:
            return Outcome(False, reason=f"no response within {timeout:g} s")
        except (OSError, http.client.HTTPException) as error:
            return Outcome(False, reason=error_text(error))
        finally:
            connection.close()
        if response.status != 200:
            text = bounded(body.decode("utf-8", "replace").strip())
            reason = f"HTTP {response.status} {response.reason}" + (f": {text}" if text.isprintable() and text else "")
            return Outcome(False, reason=reason, can_retry=response.status in _RETRYABLE_HTTP)
        try:
            return _accepted(_RESPONSES[type(message)].FromString(body))
        except Exception:  # some receivers respond with JSON or text, which is not allowed, but 200 means received
            return Outcome(True)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        host, port = self._target.host, self._target.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def close(self) -> None:
        return


class _Grpc:
    """OTLP over gRPC, over one channel that reconnects by itself."""

    def __init__(self, target: Target, headers: dict[str, str]) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core would print errors to the terminal
        try:
            import grpc  # type: ignore[import-untyped] # noqa: PLC0415 - an extra, which reads that variable
        except ModuleNotFoundError:
            raise UserError(
                "sending to OpenTelemetry over gRPC needs grpcio, which is not installed",
                "pip install 'inferometer[otlp]', or send over HTTP (http://HOST:4318)",
                "export.otlp.url",
            ) from None

        host = f"[{target.host}]" if ":" in target.host else target.host
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.primary_user_agent", f"inferometer/{__version__}"),
        ]
        address = f"{host}:{target.port}"
        if target.tls:
            self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(), options)
        else:
            self._channel = grpc.insecure_channel(address, options)
        self._error, self._unavailable = grpc.RpcError, grpc.StatusCode.UNAVAILABLE
        self._metadata = tuple(headers.items())
        self._export: dict[type[Message], Callable[..., Any]] = {
            request: self._channel.unary_unary(
                _METHODS[request],
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            for request, response in _RESPONSES.items()
        }

    def send(self, message: Message, timeout: float) -> Outcome:
        try:
            return _accepted(self._export[type(message)](message, timeout=timeout, metadata=self._metadata))
        except self._error as error:
            details = bounded(error.details() or "")
            reason = error.code().name + (f": {details}" if details else "")
            return Outcome(False, reason=reason, can_retry=error.code() is self._unavailable)
        except ValueError as error:  # invalid metadata, or the channel was closed
            return Outcome(False, reason=bounded(str(error)))

    def close(self) -> None:
        self._channel.close()


def _accepted(reply: ExportTraceServiceResponse | ExportMetricsServiceResponse) -> Outcome:
    partial = reply.partial_success
    rejected = getattr(partial, "rejected_spans", 0) or getattr(partial, "rejected_data_points", 0)
    return Outcome(True, rejected, bounded(partial.error_message) if rejected else "")


def error_text(error: Exception) -> str:
    """Describe an error of the network in a few words."""
    if isinstance(error, ssl.SSLError):
        return tls_reason(error)
    return bounded(getattr(error, "strerror", None) or str(error) or type(error).__name__)
