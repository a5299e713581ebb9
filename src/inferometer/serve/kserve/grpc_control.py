"""Metadata and control methods over gRPC: each maps a request message to a response message."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from inferometer.serve.grpc import status
from inferometer.serve.grpc.call import Call
from inferometer.serve.grpc.messages import Data, parse
from inferometer.serve.grpc.request import Unary
from inferometer.serve.kserve import control
from inferometer.serve.kserve.messages import KSERVE_SERVICE, SCHEMA, Message
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Refused
from inferometer.serve.settings import Settings

Method = Callable[[Message], Any]
"""Returns the response, or its fields; or a coroutine that does, with None for a response without fields."""


def control_methods(models: Models, settings: Settings) -> dict[str, Unary]:
    return {name: _unary(name, method) for name, method in _methods(models, settings).items()}


def _unary(name: str, method: Method) -> Unary:
    described = SCHEMA.method(f"{KSERVE_SERVICE}/{name}")

    def reply(call: Call, data: Data) -> None:
        response = method(parse(described.input, data))
        if isinstance(response, Coroutine):
            task = asyncio.get_running_loop().create_task(response)
            task.add_done_callback(lambda done: _reply_later(call, done, described.output()))
            call.on_cancelled = task.cancel  # type: ignore[assignment]
        else:
            message = described.output(**response) if isinstance(response, dict) else response
            call.reply((message.SerializeToString(),))

    return reply


def _reply_later(call: Call, task: "asyncio.Task[Message | None]", empty: Message) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is None:
        call.reply(((task.result() or empty).SerializeToString(),))
    else:
        call.refuse(status.refusal(error))


def _methods(models: Models, settings: Settings) -> dict[str, Method]:
    find = models.find

    def controlled(change: Callable[[Message], Coroutine[Any, Any, None]]) -> Method:
        def allowed(request: Message) -> Coroutine[Any, Any, None]:
            if not settings.control:
                raise Refused("PERMISSION_DENIED", control.NO_CONTROL)
            return change(request)

        return allowed

    def register(request: Message) -> Coroutine[Any, Any, None]:
        region = request.name, request.key, request.offset, request.byte_size
        return control.change_regions(models, "register", *region)

    def register_cuda(request: Message) -> Message:
        raise control.refuse_cuda(request.name)

    return {
        "ServerLive": lambda _: {"live": True},
        "ServerReady": lambda _: {"ready": models.ready},
        "ModelReady": lambda request: {"ready": models.is_ready(request.name, request.version)},
        "ServerMetadata": lambda _: control.server_metadata(models),
        "ModelMetadata": lambda request: control.model_metadata(find(request.name, request.version)),
        "ModelConfig": lambda request: {"config": control.model_config(find(request.name, request.version))},
        "ModelStatistics": lambda request: control.statistics(models, request.name, request.version),
        "RepositoryIndex": lambda request: control.repository_index(models, request.ready),
        "RepositoryModelLoad": controlled(lambda request: models.load(request.model_name, _config(request))),
        "RepositoryModelUnload": controlled(lambda request: models.unload(request.model_name)),
        "SystemSharedMemoryStatus": lambda request: control.shared_memory_status(models, request.name),
        "SystemSharedMemoryRegister": register,
        "SystemSharedMemoryUnregister": lambda request: control.change_regions(models, "unregister", request.name),
        "CudaSharedMemoryStatus": lambda request: control.cuda_status(request.name),
        "CudaSharedMemoryRegister": register_cuda,
        "CudaSharedMemoryUnregister": lambda _: {},
        "TraceSetting": lambda request: control.trace_settings(models, request.model_name, sorted(request.settings)),
        "LogSettings": lambda request: control.log_settings(sorted(request.settings)),
    }


def _config(request: Message) -> str:
    """Return the configuration that overrides the model's own."""
    control.check_load(request.parameters)
    if "config" not in request.parameters:
        return ""
    given = request.parameters["config"]
    if given.WhichOneof("parameter_choice") != "string_param":
        raise Refused("INVALID_ARGUMENT", "invalid value type for load parameter 'config', expected string_param.")
    return str(given.string_param)
