"""Metadata, statistics, loading and shared memory: the methods of the protocol that HTTP and gRPC share.

A method maps a request message to a response message. Over HTTP, the path and the JSON body make the request message, and
`tree` converts the response (http.py). Errors are Triton's.
"""

import inspect
from collections.abc import Awaitable, Callable, MutableMapping, MutableSequence
from typing import Any

from google.protobuf import message

from inferometer import __version__
from inferometer.serve.kserve.messages import KSERVE_SERVICE, SCHEMA, Message, ModelStatisticsResponse
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Refused
from inferometer.serve.offload import run_to_end
from inferometer.serve.settings import Settings

EXTENSIONS = (
    "classification", "model_repository", "schedule_policy", "model_configuration", "system_shared_memory",
    "binary_tensor_data", "parameters", "statistics",
)  # fmt: skip

Start = Callable[[Message, Callable[[Message], None], Callable[[BaseException], None]], None]
"""start(request, reply, refuse): calls one of them later, even if the client has gone by then."""
Method = tuple[Any, Start]
"""The class of the request message, and what starts a method."""


def methods(models: Models, settings: Settings) -> dict[str, Method]:
    """Return the methods by their names in gRPC."""

    def change(operation: str, *arguments: object) -> Any:
        if not settings.control:
            why = "clients may not load and unload models: the server was started without --allow-control"
            raise Refused("PERMISSION_DENIED", why)
        return models.everywhere(operation, *arguments)

    respond: dict[str, Callable[[Message], Any]] = {
        "ServerLive": lambda _: {"live": True},
        "ServerReady": lambda _: {"ready": models.ready},
        "ModelReady": lambda request: {"ready": models.is_ready(request.name, request.version)},
        "ServerMetadata": lambda _: {"name": "inferometer", "version": __version__, "extensions": EXTENSIONS},
        "ModelMetadata": lambda request: _metadata(models.find(request.name, request.version)),
        "ModelConfig": lambda request: {"config": models.find(request.name, request.version).config},
        "ModelStatistics": lambda request: _statistics(models, request.name, request.version),
        "RepositoryIndex": lambda request: {"models": [one._asdict() for one in models.index(request.ready)]},
        "RepositoryModelLoad": lambda request: change("load", request.model_name, _config(request)),
        "RepositoryModelUnload": lambda request: change("unload", request.model_name),
        "SystemSharedMemoryStatus": lambda request: {
            "regions": {
                one.name: {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.byte_size}
                for one in models.regions.status(request.name)
            }
        },
        "SystemSharedMemoryRegister": lambda request: models.everywhere(
            "register", request.name, request.key, request.offset, request.byte_size
        ),
        "SystemSharedMemoryUnregister": lambda request: models.everywhere("unregister", request.name),
        "CudaSharedMemoryStatus": _cuda_status,
        "CudaSharedMemoryRegister": _refuse_cuda,
        "CudaSharedMemoryUnregister": lambda _: None,
    }
    return {name: _method(name, function) for name, function in respond.items()}


def _method(name: str, respond: Callable[[Message], Any]) -> Method:
    """Return the method: `respond` returns the response, its fields, None if it has none, or something to await."""
    described = SCHEMA.method(f"{KSERVE_SERVICE}/{name}")

    async def run(request: Message, reply: Callable[[Message], None], refuse: Callable[[BaseException], None]) -> None:
        try:
            made = respond(request)
            if inspect.isawaitable(made):
                made = await made
            reply(made if isinstance(made, described.output) else described.output(**made or {}))
        except Exception as error:
            refuse(error)

    return described.input, lambda *words: run_to_end(run(*words))


def _metadata(model: Model) -> dict[str, Any]:
    inputs, outputs = (
        [{"name": spec.name, "datatype": spec.datatype, "shape": spec.shape} for spec in specs.values()]
        for specs in (model.signature.inputs, model.signature.outputs)
    )
    named = {"name": model.name, "versions": [model.version], "platform": model.platform}
    return named | {"inputs": inputs, "outputs": outputs}


def _statistics(models: Models, name: str, version: str) -> Message | Awaitable[Message]:
    """Return the statistics of one model, or of all models that are ready, from all processes of the server."""
    try:
        if name:
            models.find(name, version)
    except Refused:
        is_other = models.is_known(name) and version and models.is_ready(name)
        what = f"model version is not available for model '{name}'" if is_other else f"model '{name}' is not available"
        raise Refused("INVALID_ARGUMENT", f"requested {what}") from None
    return own_statistics(models, name, version) if models.group is None else models.group.statistics(name, version)


def own_statistics(models: Models, name: str = "", version: str = "") -> Message:
    """Return what this process has counted, of one model or of all."""
    ready = [models.find(one) for one in ([name] if name else models.names()) if models.is_known(one)]
    return ModelStatisticsResponse(model_stats=[model.counted.message() for model in ready if not model.is_remote])


def _config(request: Message) -> str:
    """Return the configuration in a request to load a model: the only parameter that is supported."""
    for name in request.parameters:
        if name != "config" or not request.parameters[name].HasField("string_param"):
            why = f"load parameter '{name:.60}' is not supported: only 'config' is, as a JSON string"
            raise Refused("INVALID_ARGUMENT", why)
    return str(request.parameters["config"].string_param)


def _cuda_status(request: Message) -> None:
    """Return an empty status: CUDA shared memory is not supported, so nothing is ever registered."""
    if request.name:
        raise Refused("NOT_FOUND", f"Unable to find cuda shared memory region: '{request.name}'")


def _refuse_cuda(request: Message) -> None:
    why = "CUDA shared memory is not supported; use system shared memory"
    raise Refused("INVALID_ARGUMENT", f"failed to register CUDA shared memory region '{request.name}': {why}")


def tree(value: Any, field: Any = None) -> Any:
    """Convert a message, or the value of a field, to JSON types as Triton's HTTP does: names and order of the .proto, 64-bit
    integers as numbers, enums by name. Zeros, empty strings, lists and maps are included; unset messages and oneofs are
    not."""
    if isinstance(value, message.Message):
        fields = [one for one in value.DESCRIPTOR.fields if not one.has_presence or value.HasField(one.name)]
        return {one.name: tree(getattr(value, one.name), one) for one in fields}
    if isinstance(value, MutableMapping):
        kind = field.message_type.fields_by_name["value"]
        return {str(key): tree(value[key], kind) for key in sorted(value)}
    if isinstance(value, MutableSequence):
        return [tree(one, field) for one in value]
    return value if field.enum_type is None else field.enum_type.values_by_number[value].name
