"""The gRPC server: the KServe service, our own service, health and reflection on one port, in the running event loop.

There is no generated code: methods are functions from bytes to bytes, looked up by path (handlers.py).
"""

import asyncio
import functools
import time
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from inferometer.errors import UserError
from inferometer.serve.kserve.chunked import infer_chunked
from inferometer.serve.kserve.grpc_batches import free_always
from inferometer.serve.kserve.grpc_calls import model_infer
from inferometer.serve.kserve.grpc_control import control_methods
from inferometer.serve.kserve.handlers import Context, Handlers, Service
from inferometer.serve.kserve.health import SERVICE as HEALTH_SERVICE
from inferometer.serve.kserve.health import Health
from inferometer.serve.kserve.messages import KSERVE_SERVICE, OWN_SERVICE
from inferometer.serve.kserve.reflection import Reflection
from inferometer.serve.kserve.stream import Stream, infer_stream
from inferometer.serve.models.registry import Models
from inferometer.serve.ports import bound, place
from inferometer.serve.settings import GRPC_MOST, Limits, Settings, Tls
from inferometer.serve.sockets.tls import context as check_tls

_GOODBYE_S = 0.1
_LONGEST_GOODBYE_S = 1.0
"""Limit for clients that keep calling."""
_LOOK_S = 0.01
_OVER = 1000
"""Additional calls per connection that are finished but still occupy gRPC's memory. With gRPC's default of none, a
client that waited for the end of a call could see its next one refused."""
_PENDING = 100_000
"""Calls that arrived and have not started: from 1000 on, gRPC would cancel some at random without an error. This may be
far more than --max-requests, which applies to inferences only; other calls are served beyond it."""


async def start(models: Models, settings: Settings) -> "GrpcServer":
    """Listen on settings.grpc (0 or None: any free port); raises UserError if that fails."""
    free_always()
    server = GrpcServer(models, settings)
    await server.start()
    return server


class GrpcServer:
    """The running gRPC server. `port` is where it listens; `health` holds the state that health checks report."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self._models = models
        self._streams: set[Stream] = set()
        self._receiving: set[Context] = set()
        """InferChunked calls whose requests are incomplete."""
        self.health = Health(models.is_ready, models.is_known)
        reflection = Reflection((KSERVE_SERVICE, OWN_SERVICE, HEALTH_SERVICE))
        services = [
            Service(
                KSERVE_SERVICE,
                unary={"ModelInfer": functools.partial(model_infer, models), **control_methods(models, settings)},
                streaming={"ModelStreamInfer": self._model_stream_infer},
                open=frozenset(("ServerLive", "ServerReady", "ModelReady")),
            ),
            Service(
                OWN_SERVICE,
                streaming={
                    "InferStream": functools.partial(infer_stream, models),
                    "InferChunked": functools.partial(infer_chunked, models, settings.limits.chunked, self._receiving),
                },
            ),
            self.health.service,
            *reflection.services(),
        ]
        self._handlers = Handlers(services, settings.token, settings.access_log)
        self._server = grpc.aio.server(
            handlers=(self._handlers,),
            options=[*_options(settings.limits), ("grpc.so_reuseport", int(settings.processes > 1))],
        )
        self.port = self._listen(settings)

    def _listen(self, settings: Settings) -> int:
        port = settings.grpc or 0
        credentials = None if settings.tls is None else _credentials(settings.tls)
        with bound(
            settings.host, port, "--grpc", settings.processes > 1
        ) as tried:  # gRPC itself does not report the reason
            host = tried.getsockname()[0]
        address = place(host, port)
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError:
            raise UserError(
                f"{host} port {port} is not available for gRPC", "choose another port with --grpc"
            ) from None

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let those in progress end for `grace` seconds, then cancel them. (The models already
        refuse.)"""
        if grace:
            await self._until_no_calls_are_pending()
        self.health.close()
        for stream in list(self._streams):
            stream.end_input()
        await self._server.stop(grace)

    async def _until_no_calls_are_pending(self) -> None:
        """Wait until no call is pending in gRPC: it would cancel those without an error."""
        begun, since = self._handlers.begun, time.monotonic()
        end = since + _LONGEST_GOODBYE_S
        while (at := time.monotonic()) < end and at - since < _GOODBYE_S:
            if self._handlers.begun != begun:
                begun, since = self._handlers.begun, at
            await asyncio.sleep(_LOOK_S)

    async def _model_stream_infer(self, context: Context) -> None:
        stream = Stream(self._models, context)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)


def _options(limits: Limits) -> list[tuple[str, Any]]:
    pending = max(limits.requests, _PENDING)
    return [
        ("grpc.max_receive_message_length", min(limits.message, GRPC_MOST)),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.head),
        ("grpc.absolute_max_metadata_size", limits.head),
        ("grpc.max_concurrent_streams", limits.streams),
        ("grpc.http2.max_deallocating_streams", max(limits.streams, _OVER)),
        ("grpc.server.max_pending_requests", pending),
        ("grpc.server.max_pending_requests_hard_limit", pending),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ]


def _credentials(tls: Tls) -> Any:
    check_tls(tls)  # gRPC itself would only notice when a client connects
    authority = Path(tls.client_ca).read_bytes() if tls.client_ca else None
    pair = Path(tls.key).read_bytes(), Path(tls.cert).read_bytes()
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
