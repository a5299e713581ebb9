"""Metadata and control methods over gRPC: each maps a request message to a response message."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from google.protobuf.message import DecodeError

from inferometer.serve.grpc import status
from inferometer.serve.grpc.call import Call
from inferometer.serve.grpc.request import Data, Unary
from inferometer.serve.kserve import control
from inferometer.serve.kserve.messages import (
    KSERVE_SERVICE,
    SCHEMA,
    CudaSharedMemoryUnregisterResponse,
    Message,
    ModelConfigResponse,
    ModelReadyResponse,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadResponse,
    ServerLiveResponse,
    ServerReadyResponse,
    SystemSharedMemoryRegisterResponse,
    SystemSharedMemoryUnregisterResponse,
)
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Refused
from inferometer.serve.settings import Settings
from inferometer.wire.failures import bounded

Method = Callable[[Message], Message | Coroutine[Any, Any, Message]]


def control_methods(models: Models, settings: Settings) -> dict[str, Unary]:
    return {name: _unary(name, method) for name, method in {**_queries(models), **_commands(models, settings)}.items()}


def _unary(name: str, method: Method) -> Unary:
    kind = SCHEMA.method(f"{KSERVE_SERVICE}/{name}").input

    def reply(call: Call, data: Data) -> None:
        try:
            request = kind.FromString(data)
        except DecodeError as error:
            raise Refused(
                "INTERNAL", f"the message is not a valid {kind.DESCRIPTOR.name}: {bounded(str(error))}"
            ) from None
        response = method(request)
        if isinstance(response, Coroutine):
            task = asyncio.get_running_loop().create_task(response)
            task.add_done_callback(lambda done: _reply_later(call, done))
            call.on_cancelled = task.cancel  # type: ignore[assignment]
        else:
            call.reply((response.SerializeToString(),))

    return reply


def _reply_later(call: Call, task: "asyncio.Task[Message]") -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is None:
        call.reply((task.result().SerializeToString(),))
    else:
        call.refuse(status.refusal(error))


def _queries(models: Models) -> dict[str, Method]:
    return {
        "ServerLive": lambda _: ServerLiveResponse(live=True),
        "ServerReady": lambda _: ServerReadyResponse(ready=models.ready),
        "ModelReady": lambda request: ModelReadyResponse(ready=models.is_ready(request.name, request.version)),
        "ServerMetadata": lambda _: control.server_metadata(models),
        "ModelMetadata": lambda request: control.model_metadata(models.find(request.name, request.version)),
        "ModelConfig": lambda request: ModelConfigResponse(
            config=control.model_config(models.find(request.name, request.version))
        ),
        "ModelStatistics": lambda request: control.statistics(models, request.name, request.version),
        "RepositoryIndex": lambda request: control.repository_index(models, request.ready),
        "SystemSharedMemoryStatus": lambda request: control.shared_memory_status(models, request.name),
        "CudaSharedMemoryStatus": lambda request: control.cuda_status(request.name),
        "TraceSetting": lambda request: control.trace_settings(models, request.model_name, sorted(request.settings)),
        "LogSettings": lambda request: control.log_settings(sorted(request.settings)),
    }


def _commands(models: Models, settings: Settings) -> dict[str, Method]:
    async def load(request: Message) -> Message:
        _check_control(settings)
        await models.load(request.model_name, _config(request))
        return RepositoryModelLoadResponse()

    async def unload(request: Message) -> Message:
        _check_control(settings)
        await models.unload(request.model_name)
        return RepositoryModelUnloadResponse()

    async def register(request: Message) -> Message:
        await control.change_regions(models, "register", request.name, request.key, request.offset, request.byte_size)
        return SystemSharedMemoryRegisterResponse()

    async def unregister(request: Message) -> Message:
        await control.change_regions(models, "unregister", request.name)
        return SystemSharedMemoryUnregisterResponse()

    def register_cuda(request: Message) -> Message:
        raise control.refuse_cuda(request.name)

    return {
        "RepositoryModelLoad": load,
        "RepositoryModelUnload": unload,
        "SystemSharedMemoryRegister": register,
        "SystemSharedMemoryUnregister": unregister,
        "CudaSharedMemoryRegister": register_cuda,
        "CudaSharedMemoryUnregister": lambda _: CudaSharedMemoryUnregisterResponse(),
    }


def _check_control(settings: Settings) -> None:
    if not settings.control:
        raise Refused("PERMISSION_DENIED", control.NO_CONTROL)


def _config(request: Message) -> str:
    """Return the configuration that overrides the model's own."""
    control.check_load(request.parameters)
    if "config" not in request.parameters:
        return ""
    given = request.parameters["config"]
    if given.WhichOneof("parameter_choice") != "string_param":
        raise Refused("INVALID_ARGUMENT", "invalid value type for load parameter 'config', expected string_param.")
    return str(given.string_param)
