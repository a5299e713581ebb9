"""The services of the gRPC server: KServe, health and reflection on one port."""

import asyncio
import socket
from collections.abc import Awaitable

from inferometer.serve.grpc.call import Call, parse
from inferometer.serve.grpc.headers import Data, Method, Unary
from inferometer.serve.grpc.server import GrpcServer
from inferometer.serve.grpc.standard_services import Health, Reflection
from inferometer.serve.kserve import control
from inferometer.serve.kserve.grpc_infer import GrpcInfer
from inferometer.serve.kserve.messages import KSERVE_SERVICE, Message
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import reason
from inferometer.serve.ports import bound, explained
from inferometer.serve.settings import Settings

_OPEN = ("ServerLive", "ServerReady", "ModelReady")
"""Methods that require no token."""


class KserveGrpc(GrpcServer):
    """The running server. `port` is where it listens; `health` holds the state that health checks report."""

    def __init__(self, models: Models, settings: Settings, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.health = Health(loop, KSERVE_SERVICE, models.is_ready, models.is_known)
        infer = GrpcInfer(models)
        methods = {"ModelInfer": Method(infer.infer), "ModelStreamInfer": Method(infer.stream, is_unary=False)}
        for name, method in control.methods(models, settings).items():
            methods[name] = Method(_unary(method), is_open=name in _OPEN)
        paths = {f"/{KSERVE_SERVICE}/{name}": method for name, method in methods.items()}
        paths |= self.health.methods() | Reflection((KSERVE_SERVICE, Health.NAME)).methods()
        super().__init__(loop, sock, paths, (infer.close, self.health.close), settings, models.offload)


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
    kind, run = method

    def respond(call: Call, data: Data) -> None:
        call.on_cancelled = asyncio.ensure_future(_respond(call, run(parse(kind, data)))).cancel

    return respond


async def _respond(call: Call, work: Awaitable[Message]) -> None:
    try:
        made = await work
    except Exception as error:
        call.refuse(reason(error))
    else:
        call.reply((made.SerializeToString(),))
