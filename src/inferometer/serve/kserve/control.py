"""Server and model metadata, statistics and control as the protocol's messages; `tree` converts them for HTTP.

HTTP and gRPC both use this module, so that they return the same. Error messages are Triton's.
"""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from inferometer import __version__
from inferometer.serve.kserve import messages
from inferometer.serve.kserve.messages import Message
from inferometer.serve.models.registry import Model, Models
from inferometer.serve.models.types import Refused
from inferometer.tensors import TensorSpec

NAME = "inferometer"
EXTENSIONS = (
    "classification", "model_repository", "schedule_policy", "model_configuration", "system_shared_memory",
    "binary_tensor_data", "parameters", "statistics",
)  # fmt: skip

NO_CONTROL = "clients may not load and unload models: the server was started without --allow-control"


def server_metadata(models: Models) -> Message:
    return messages.ServerMetadataResponse(name=NAME, version=__version__, extensions=EXTENSIONS)


def model_metadata(model: Model) -> Message:
    made = messages.ModelMetadataResponse(name=model.name, versions=list(model.versions), platform=model.platform)
    _add_specs(made.inputs, model.facts.inputs)
    _add_specs(made.outputs, model.facts.outputs)
    return made


def _add_specs(field: Any, specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        field.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def model_config(model: Model) -> Message:
    """Return the ModelConfig."""
    return model.config


def statistics(models: Models, name: str = "", version: str = "") -> Message | Awaitable[Message]:
    """Return the statistics of one model, or of all models that are ready, from all processes of the server."""
    if name:
        _ready_one(models, name, version)
    return own_statistics(models, name, version) if models.group is None else models.group.statistics(name, version)


def own_statistics(models: Models, name: str = "", version: str = "") -> Message:
    """Return what this process has counted, of one model or of all."""
    ready = [models.find(one) for one in ([name] if name else models.names()) if models.is_known(one)]
    return messages.ModelStatisticsResponse(model_stats=[model.statistics() for model in ready if not model.is_remote])


def _ready_one(models: Models, name: str, version: str) -> Model:
    try:
        return models.find(name, version)
    except Refused as refused:
        if refused.code not in ("NOT_FOUND", "UNAVAILABLE"):
            raise
    if version and models.is_ready(name):
        raise Refused("INVALID_ARGUMENT", f"requested model version is not available for model '{name}'")
    raise Refused("INVALID_ARGUMENT", f"requested model '{name}' is not available")


def repository_index(models: Models, ready: bool = False) -> Message:
    made = messages.RepositoryIndexResponse()
    for entry in models.index(only_ready=ready):
        made.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
    return made


def check_load(parameters: Iterable[str]) -> None:
    """Check the parameters of a load request: the configuration is the only one supported."""
    for name in sorted(parameters):
        if name.startswith("file:"):
            why = "this server loads models only from its repository, not from files in requests"
            raise Refused("UNIMPLEMENTED", why)
        if name != "config":
            raise Refused("INVALID_ARGUMENT", f"load parameter '{name:.60}' is unknown: only 'config' is supported")


# --- shared memory ---------------------------------------------------------------------------------------------------


def shared_memory_status(models: Models, name: str = "") -> Message:
    made = messages.SystemSharedMemoryStatusResponse()
    for region in models.regions.status(name):
        status = made.regions[region.name]
        status.name, status.key = region.name, region.key
        status.offset, status.byte_size = region.offset, region.byte_size
    return made


async def change_regions(models: Models, operation: str, *arguments: object) -> None:
    """Register or unregister shared memory in all processes of the server."""
    if models.group is not None:
        await models.group.everywhere(operation, *arguments)
    else:
        getattr(models.regions, operation)(*arguments)


def cuda_status(name: str = "") -> Message:
    """Return an empty status: CUDA shared memory is not supported, so nothing is ever registered."""
    if name:
        raise Refused("NOT_FOUND", f"Unable to find cuda shared memory region: '{name}'")
    return messages.CudaSharedMemoryStatusResponse()


def refuse_cuda(name: str) -> Refused:
    why = "CUDA shared memory is not supported; use system shared memory"
    return Refused("INVALID_ARGUMENT", f"failed to register CUDA shared memory region '{name}': {why}")


# --- traces and logs: shown, and not to be changed -------------------------------------------------------------------

_TRACE = {
    "trace_level": "OFF", "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_file": "",
    "trace_mode": "triton",
}  # fmt: skip
_LOG: dict[str, bool | int | str] = {
    "log_file": "", "log_info": False, "log_warning": False, "log_error": False, "log_verbose_level": 0,
    "log_format": "default",
}  # fmt: skip


def trace_settings(models: Models, model: str = "", asked: Sequence[str] = ()) -> Message:
    """Return the trace settings. `asked` are those that the client wants to change, which is not supported."""
    if model and not models.is_ready(model):
        raise Refused("INVALID_ARGUMENT", f"Request for unknown model : {model}")
    if asked:
        raise Refused("UNIMPLEMENTED", "this server does not trace: trace settings cannot be changed")
    made = messages.TraceSettingResponse()
    for name, value in _TRACE.items():
        made.settings[name].value.append(value)
    return made


def log_settings(asked: Sequence[str] = ()) -> Message:
    if asked:
        raise Refused("UNIMPLEMENTED", "this server does not write Triton's log: log settings cannot be changed")
    made = messages.LogSettingsResponse()
    for name, value in _LOG.items():
        kind = "bool_param" if isinstance(value, bool) else "uint32_param" if isinstance(value, int) else "string_param"
        setattr(made.settings[name], kind, value)
    return made


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
