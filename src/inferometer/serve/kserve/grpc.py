"""The services of the gRPC server: KServe, health and reflection on one port."""

import asyncio
import socket

from inferometer.serve.grpc.health import NAME as HEALTH_SERVICE
from inferometer.serve.grpc.health import Health
from inferometer.serve.grpc.reflection import Reflection
from inferometer.serve.grpc.server import GrpcServer, Service
from inferometer.serve.kserve.grpc_control import control_methods
from inferometer.serve.kserve.grpc_infer import ModelInfer
from inferometer.serve.kserve.messages import KSERVE_SERVICE
from inferometer.serve.kserve.stream import ModelStreamInfer
from inferometer.serve.models.registry import Models
from inferometer.serve.ports import bound, explained
from inferometer.serve.settings import Settings


class KserveGrpc(GrpcServer):
    """The running server. `port` is where it listens; `health` holds the state that health checks report."""

    def __init__(self, models: Models, settings: Settings, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.health = Health(loop, (KSERVE_SERVICE,), models.is_ready, models.is_known)
        stream = ModelStreamInfer(models)
        kserve = Service(
            KSERVE_SERVICE,
            unary={"ModelInfer": ModelInfer(models), **control_methods(models, settings)},
            streaming={"ModelStreamInfer": stream},
            open=frozenset(("ServerLive", "ServerReady", "ModelReady")),
            close=stream.close,
        )
        reflection = Reflection((KSERVE_SERVICE, HEALTH_SERVICE))
        services = [kserve, self.health.service, *reflection.services()]
        super().__init__(loop, sock, services, settings, models.offload)


async def start(models: Models, settings: Settings, sock: socket.socket | None = None) -> KserveGrpc:
    """Listen on the bound socket, or on settings.grpc (0 or None: any free port); raises UserError if that fails."""
    sock = sock or bound(settings.host, settings.grpc or 0, "--grpc", settings.processes > 1)
    try:
        host, port = sock.getsockname()[:2]
        with explained(host, port, "--grpc"):
            return KserveGrpc(models, settings, sock)
    except BaseException:
        sock.close()
        raise
