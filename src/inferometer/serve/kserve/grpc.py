"""The services of the gRPC server: KServe, health and reflection on one port."""

import asyncio
import inspect
import socket
from collections.abc import Awaitable

from inferometer.serve.grpc.call import Call
from inferometer.serve.grpc.health import NAME as HEALTH_SERVICE
from inferometer.serve.grpc.health import Health
from inferometer.serve.grpc.messages import Data, parse
from inferometer.serve.grpc.reflection import Reflection
from inferometer.serve.grpc.request import Unary
from inferometer.serve.grpc.server import GrpcServer, Service
from inferometer.serve.kserve import control
from inferometer.serve.kserve.grpc_infer import ModelInfer
from inferometer.serve.kserve.messages import KSERVE_SERVICE, Message
from inferometer.serve.kserve.stream import ModelStreamInfer
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import reason
from inferometer.serve.ports import bound, explained
from inferometer.serve.settings import Settings


class KserveGrpc(GrpcServer):
    """The running server. `port` is where it listens; `health` holds the state that health checks report."""

    def __init__(self, models: Models, settings: Settings, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.health = Health(loop, (KSERVE_SERVICE,), models.is_ready, models.is_known)
        stream = ModelStreamInfer(models)
        methods = {name: _unary(method) for name, method in control.methods(models, settings).items()}
        kserve = Service(
            KSERVE_SERVICE,
            unary={"ModelInfer": ModelInfer(models), **methods},
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


def _unary(method: control.Method) -> Unary:
    def respond(call: Call, data: Data) -> None:
        made = method(parse(method.input, data))
        if inspect.isawaitable(made):
            task = asyncio.ensure_future(_respond_later(call, made))
            call.on_cancelled = task.cancel  # type: ignore[assignment]
        else:
            call.reply((made.SerializeToString(),))

    return respond


async def _respond_later(call: Call, work: Awaitable[Message]) -> None:
    try:
        made = await work
    except Exception as error:
        call.refuse(reason(error))
    else:
        call.reply((made.SerializeToString(),))
