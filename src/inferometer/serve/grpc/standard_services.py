"""The services that gRPC servers usually offer beside their own: health and reflection."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

from inferometer.serve.grpc.call import Call, parse
from inferometer.serve.grpc.headers import Data, Method
from inferometer.serve.models.types import Refused
from inferometer.wire import protobuf
from inferometer.wire.grpc_framing import status_number

# --- health ----------------------------------------------------------------------------------------------------------

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3

_HealthRequest = protobuf.bundled("health").message("grpc.health.v1.HealthCheckRequest")
_HealthResponse = protobuf.bundled("health").message("grpc.health.v1.HealthCheckResponse")
_LOOK_S = 0.5
"""Interval for polling watched models: they come and go without notification."""


class Health:
    """Check and Watch for the server, its `service`, and everything that `is_known`: each model by name. `set_serving`
    notifies watchers at once."""

    NAME = "grpc.health.v1.Health"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: str,
        is_ready: Callable[[str], bool],
        is_known: Callable[[str], bool],
    ) -> None:
        self._loop, self._services, self._is_ready, self._is_known = loop, ("", service), is_ready, is_known
        self._serving = True
        self._watches: dict[Call, tuple[str, int]] = {}  # the service, and the status that was sent last
        self._timer: asyncio.TimerHandle | None = None

    def methods(self) -> dict[str, Method]:
        check, watch = Method(self._check, is_open=True), Method(self._watch, is_unary=False, is_open=True)
        return {f"/{self.NAME}/Check": check, f"/{self.NAME}/Watch": watch}

    def set_serving(self, serving: bool) -> None:
        self._serving = serving
        self._look()

    def close(self) -> None:
        """Report NOT_SERVING to all watchers and end their calls."""
        self.set_serving(False)
        for call in list(self._watches):
            call.finish()
        self._watches.clear()

    def status(self, service: str) -> int:
        is_own = service in self._services
        if not is_own and not self._is_known(service):
            return SERVICE_UNKNOWN
        return SERVING if self._serving and (is_own or self._is_ready(service)) else NOT_SERVING

    def _check(self, call: Call, data: Data) -> None:
        service = parse(_HealthRequest, data).service
        status = self.status(service)
        if status == SERVICE_UNKNOWN:
            raise Refused("NOT_FOUND", f"unknown service or model '{service}'")
        call.reply((_message(status),))

    def _watch(self, call: Call) -> None:
        def requested(_: Call, data: Data) -> None:
            self._watches.setdefault(call, (parse(_HealthRequest, data).service, -1))
            self._look()

        def ended(_: Call) -> None:
            if call not in self._watches:
                raise Refused("INVALID_ARGUMENT", "the call contains no request")

        call.on_message, call.on_ended = requested, ended
        call.on_cancelled = lambda: self._watches.pop(call, None) and None

    def _look(self) -> None:
        """Notify all watchers of changes, now and from time to time, as long as there are any."""
        for call, (service, sent) in list(self._watches.items()):
            if (status := self.status(service)) != sent:
                self._watches[call] = service, status
                call.send(_message(status))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LOOK_S, self._look) if self._watches else None


def _message(status: int) -> bytes:
    return bytes(_HealthResponse(status=status).SerializeToString())


# --- reflection ------------------------------------------------------------------------------------------------------

_REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_SETS = ("kserve", "health", "reflection", "reflection_v1alpha")
_Request = protobuf.bundled("reflection").message("grpc.reflection.v1.ServerReflectionRequest")
_Response = protobuf.bundled("reflection").message("grpc.reflection.v1.ServerReflectionResponse")


class Reflection:
    """Server reflection, v1 and v1alpha (with identical messages): the server describes its own services."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = sorted({*services, *_REFLECTION})
        self._pool = descriptor_pool.DescriptorPool()
        self._files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        for name in _SETS:
            data = (protobuf.BUNDLED / f"{name}.binpb").read_bytes()
            for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
                if file.name not in self._files:
                    self._files[file.name] = file
                    self._pool.AddSerializedFile(file.SerializeToString())

    def methods(self) -> dict[str, Method]:
        return {f"/{name}/ServerReflectionInfo": Method(self._begin, is_unary=False) for name in _REFLECTION}

    def _begin(self, call: Call) -> None:
        call.on_message, call.on_ended = self._message, Call.finish

    def _message(self, call: Call, data: Data) -> None:
        call.send(self.respond(parse(_Request, data)).SerializeToString())

    def respond(self, request: Any) -> Any:
        made = _Response(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._services:
                made.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            self._describe(made, request.file_by_filename, request.file_by_filename)
        elif kind == "file_containing_symbol":
            self._describe(made, self._file_of(request.file_containing_symbol), request.file_containing_symbol)
        elif kind == "all_extension_numbers_of_type":  # there are none, of any type
            made.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
        else:
            _error(made, "extensions are not supported")
        return made

    def _file_of(self, symbol: str) -> str:
        """Return the file that defines a message, field, enum, service or method, or ""."""
        name = symbol.removeprefix(".")
        try:
            return str(self._pool.FindFileContainingSymbol(name).name)
        except KeyError:
            service, _, method = name.rpartition(".")
        try:
            return str(self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file.name)
        except KeyError:
            return ""

    def _describe(self, made: Any, name: str, what: str) -> None:
        """Return the file, followed by its imports."""
        if name not in self._files:
            _error(made, f"unknown file or symbol {what!r}")
            return
        wanted = [name]
        for file in wanted:
            wanted += [one for one in self._files[file].dependency if one not in wanted]
        for file in wanted:
            made.file_descriptor_response.file_descriptor_proto.append(self._files[file].SerializeToString())


def _error(made: Any, message: str) -> None:
    made.error_response.error_code = status_number("NOT_FOUND")
    made.error_response.error_message = message
