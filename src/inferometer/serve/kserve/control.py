"""Metadata, statistics, loading and shared memory: the methods of the protocol that HTTP and gRPC share.

A method maps a request message to a response message. Over HTTP, the path and the JSON body make the request message, and
`tree` converts the response (routes.py). Errors are Triton's.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from inferometer import __version__
from inferometer.serve.kserve.messages import KSERVE_SERVICE, SCHEMA, Message, ModelStatisticsResponse
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Refused
from inferometer.serve.settings import Settings

EXTENSIONS = (
    "classification", "model_repository", "schedule_policy", "model_configuration", "system_shared_memory",
    "binary_tensor_data", "parameters", "statistics",
)  # fmt: skip


Method = tuple[Any, Callable[[Message], Awaitable[Message]]]
"""The class of the request message, and what makes the response message of one."""


def methods(models: Models, settings: Settings) -> dict[str, Method]:
    """Return the methods by their names in gRPC."""

    def change(operation: Callable[..., Awaitable[None]], *arguments: object) -> Awaitable[None]:
        if not settings.control:
            why = "clients may not load and unload models: the server was started without --allow-control"
            raise Refused("PERMISSION_DENIED", why)
        return operation(*arguments)

    respond: dict[str, Callable[[Message], Any]] = {
        "ServerLive": lambda _: {"live": True},
        "ServerReady": lambda _: {"ready": models.ready},
        "ModelReady": lambda request: {"ready": models.is_ready(request.name, request.version)},
        "ServerMetadata": lambda _: {"name": "inferometer", "version": __version__, "extensions": EXTENSIONS},
        "ModelMetadata": lambda request: _metadata(models.find(request.name, request.version)),
        "ModelConfig": lambda request: {"config": models.find(request.name, request.version).config},
        "ModelStatistics": lambda request: _statistics(models, request.name, request.version),
        "RepositoryIndex": lambda request: {"models": [one._asdict() for one in models.index(request.ready)]},
        "RepositoryModelLoad": lambda request: change(_load, models, request),
        "RepositoryModelUnload": lambda request: change(models.unload, request.model_name),
        "SystemSharedMemoryStatus": lambda request: _regions(models, request.name),
        "SystemSharedMemoryRegister": lambda request: _change_regions(
            models, "register", request.name, request.key, request.offset, request.byte_size
        ),
        "SystemSharedMemoryUnregister": lambda request: _change_regions(models, "unregister", request.name),
        "CudaSharedMemoryStatus": _no_cuda_status,
        "CudaSharedMemoryRegister": _refuse_cuda,
        "CudaSharedMemoryUnregister": lambda _: None,
    }
    return {name: _method(name, function) for name, function in respond.items()}


def _method(name: str, respond: Callable[[Message], Any]) -> Method:
    """Return the method: `respond` returns the response, its fields, None if it has none, or something to await."""
    described = SCHEMA.method(f"{KSERVE_SERVICE}/{name}")

    async def run(request: Message) -> Message:
        made = respond(request)
        if inspect.isawaitable(made):
            made = await made
        return described.output(**made or {}) if made is None or isinstance(made, dict) else made

    return described.input, run


# --- models ----------------------------------------------------------------------------------------------------------


def _metadata(model: Model) -> dict[str, Any]:
    inputs, outputs = (
        [{"name": spec.name, "datatype": spec.datatype, "shape": spec.shape} for spec in specs]
        for specs in (model.facts.inputs, model.facts.outputs)
    )
    made = {"name": model.name, "versions": model.versions, "platform": model.platform}
    return made | {"inputs": inputs, "outputs": outputs}


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
    return ModelStatisticsResponse(model_stats=[model.statistics() for model in ready if not model.is_remote])


def _load(models: Models, request: Message) -> Awaitable[None]:
    """Load a model, with the configuration in the request: the only parameter that is supported."""
    for name in sorted(request.parameters):
        if name.startswith("file:"):
            why = "this server loads models only from its repository, not from files in requests"
            raise Refused("UNIMPLEMENTED", why)
        if name != "config" or request.parameters[name].WhichOneof("parameter_choice") != "string_param":
            why = f"load parameter '{name:.60}' is not supported: only 'config' is, as a JSON string"
            raise Refused("INVALID_ARGUMENT", why)
    return models.load(request.model_name, request.parameters["config"].string_param)


# --- shared memory ---------------------------------------------------------------------------------------------------


def _regions(models: Models, name: str) -> dict[str, Any]:
    return {
        "regions": {
            one.name: {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.byte_size}
            for one in models.regions.status(name)
        }
    }


async def _change_regions(models: Models, operation: str, *arguments: object) -> None:
    """Register or unregister shared memory in all processes of the server."""
    if models.group is not None:
        await models.group.everywhere(operation, *arguments)
    else:
        getattr(models.regions, operation)(*arguments)


def _no_cuda_status(request: Message) -> None:
    """Return an empty status: CUDA shared memory is not supported, so nothing is ever registered."""
    if request.name:
        raise Refused("NOT_FOUND", f"Unable to find cuda shared memory region: '{request.name}'")


def _refuse_cuda(request: Message) -> None:
    why = "CUDA shared memory is not supported; use system shared memory"
    raise Refused("INVALID_ARGUMENT", f"failed to register CUDA shared memory region '{request.name}': {why}")


# --- as JSON ---------------------------------------------------------------------------------------------------------


def tree(message: Message, empty: bool = True) -> dict[str, Any]:
    """Convert a message to JSON types as Triton's HTTP does: names and order of the .proto, 64-bit integers as numbers,
    enums by name.

    With `empty`, zeros, empty strings, lists and maps are included; unset messages and oneofs never are. (Triton prints
    the repository index without empty values.)
    """
    return {
        field.name: _value(message, field, empty)
        for field in message.DESCRIPTOR.fields
        if (message.HasField(field.name) if field.has_presence else empty or getattr(message, field.name))
    }


def _value(message: Message, field: FieldDescriptor, empty: bool) -> Any:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _item(field, value, empty)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        return {str(key): _item(kind, value[key], empty) for key in sorted(value)}
    return [_item(field, one, empty) for one in value]


def _item(field: FieldDescriptor, value: Any, empty: bool) -> Any:
    if field.message_type is not None:
        return tree(value, empty)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value.decode("utf-8", "backslashreplace")
    return value
