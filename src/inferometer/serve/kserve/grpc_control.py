"""Metadata and control methods over gRPC: each maps a request message to a response message."""

import inspect
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from inferometer.serve.kserve import control
from inferometer.serve.kserve.handlers import Context, Unary
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

Method = Callable[[Message], Message | Awaitable[Message]]


def control_methods(models: Models, settings: Settings) -> dict[str, Unary]:
    return {name: _unary(name, method) for name, method in {**_questions(models), **_orders(models, settings)}.items()}


def _unary(name: str, method: Method) -> Unary:
    kind = SCHEMA.method(f"{KSERVE_SERVICE}/{name}").input

    async def call(data: bytes, context: Context) -> bytes:
        try:
            request = kind.FromString(data)
        except DecodeError as error:
            raise Refused(
                "INTERNAL", f"the message is not a valid {kind.DESCRIPTOR.name}: {bounded(str(error))}"
            ) from None
        answer = method(request)
        made: bytes = (await answer if inspect.isawaitable(answer) else answer).SerializeToString()
        return made

    return call


def _questions(models: Models) -> dict[str, Method]:
    return {
        "ServerLive": lambda _: ServerLiveResponse(live=True),
        "ServerReady": lambda _: ServerReadyResponse(ready=models.ready),
        "ModelReady": lambda asked: ModelReadyResponse(ready=models.is_ready(asked.name, asked.version)),
        "ServerMetadata": lambda _: control.server_metadata(models),
        "ModelMetadata": lambda asked: control.model_metadata(models.find(asked.name, asked.version)),
        "ModelConfig": lambda asked: ModelConfigResponse(
            config=control.model_config(models.find(asked.name, asked.version))
        ),
        "ModelStatistics": lambda asked: control.statistics(models, asked.name, asked.version),
        "RepositoryIndex": lambda asked: control.repository_index(models, asked.ready),
        "SystemSharedMemoryStatus": lambda asked: control.shared_memory_status(models, asked.name),
        "CudaSharedMemoryStatus": lambda asked: control.cuda_status(asked.name),
        "TraceSetting": lambda asked: control.trace_settings(models, asked.model_name, sorted(asked.settings)),
        "LogSettings": lambda asked: control.log_settings(sorted(asked.settings)),
    }


def _orders(models: Models, settings: Settings) -> dict[str, Method]:
    async def load(asked: Message) -> Message:
        _check_control(settings)
        await models.load(asked.model_name, _config(asked))
        return RepositoryModelLoadResponse()

    async def unload(asked: Message) -> Message:
        _check_control(settings)
        await models.unload(asked.model_name)
        return RepositoryModelUnloadResponse()

    async def register(asked: Message) -> Message:
        await control.change_regions(models, "register", asked.name, asked.key, asked.offset, asked.byte_size)
        return SystemSharedMemoryRegisterResponse()

    async def unregister(asked: Message) -> Message:
        await control.change_regions(models, "unregister", asked.name)
        return SystemSharedMemoryUnregisterResponse()

    def register_cuda(asked: Message) -> Message:
        raise control.refuse_cuda(asked.name)

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


def _config(asked: Message) -> str:
    """Return the configuration that overrides the model's own."""
    control.check_load(asked.parameters)
    if "config" not in asked.parameters:
        return ""
    given = asked.parameters["config"]
    if given.WhichOneof("parameter_choice") != "string_param":
        raise Refused("INVALID_ARGUMENT", "invalid value type for load parameter 'config', expected string_param.")
    return str(given.string_param)
