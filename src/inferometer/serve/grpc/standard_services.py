"""The services that gRPC servers usually offer beside their own: health and reflection."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from inferometer.serve.grpc.call import Call, Data, Method, parse
from inferometer.serve.models.types import Refused
from inferometer.wire import protobuf
from inferometer.wire.grpc_framing import status_number
from inferometer.wire.reflection import PATHS

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3

_HealthRequest = protobuf.bundled("health").message("grpc.health.v1.HealthCheckRequest")
_HealthResponse = protobuf.bundled("health").message("grpc.health.v1.HealthCheckResponse")
_LOOK_S = 0.5
"""Interval for polling watched models: they come and go without notification."""


class Health:
    """Check and Watch for the server, its `service`, and everything that `is_known`: each model by name. `set_serving`
    notifies watchers at once."""

    def __init__(self, service: str, is_ready: Callable[[str], bool], is_known: Callable[[str], bool]) -> None:
        self._services, self._is_ready, self._is_known = ("", service), is_ready, is_known
        self._serving = True
        self._watches: dict[Call, tuple[str, int]] = {}  # the service, and the status that was sent last
        self._timer: asyncio.TimerHandle | None = None

    def methods(self) -> dict[str, Method]:
        methods = {"Check": self._check, "Watch": self._watch}
        return {f"/grpc.health.v1.Health/{name}": Method(start, is_open=True) for name, start in methods.items()}

    def set_serving(self, serving: bool) -> None:
        self._serving = serving
        self._look()

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
        call.reply((_HealthResponse(status=status).SerializeToString(),))

    def _watch(self, call: Call, data: Data) -> None:
        def drained() -> None:
            self.set_serving(False)
            call.finish()

        self._watches[call] = parse(_HealthRequest, data).service, -1
        call.on_over, call.on_drained = lambda: self._watches.pop(call, None), drained
        self._look()

    def _look(self) -> None:
        """Notify all watchers of changes, now and from time to time, as long as there are any."""
        for call, (service, sent) in list(self._watches.items()):
            if (status := self.status(service)) != sent:
                self._watches[call] = service, status
                call.send(_HealthResponse(status=status).SerializeToString())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look) if self._watches else None


_SETS = ("kserve", "health", "reflection", "reflection_v1alpha")
_Request = protobuf.bundled("reflection").message("grpc.reflection.v1.ServerReflectionRequest")
_Response = protobuf.bundled("reflection").message("grpc.reflection.v1.ServerReflectionResponse")


class Reflection:
    """Server reflection, v1 and v1alpha (with identical messages): the server describes its own services."""

    def __init__(self) -> None:
        schema = protobuf.load(*(protobuf.BUNDLED / f"{name}.binpb" for name in _SETS))
        self._pool, self._services = schema.pool, sorted({name.partition("/")[0] for name in schema.methods})

    def methods(self) -> dict[str, Method]:
        return {path: Method(self._begin, is_stream=True) for path in PATHS}

    def _begin(self, call: Call) -> None:
        call.on_message, call.on_ended = self._message, Call.finish

    def _message(self, call: Call, data: Data) -> None:
        request = parse(_Request, data)
        made = _Response(valid_host=request.host, original_request=request)
        if request.HasField("list_services"):
            for name in self._services:
                made.list_services_response.service.add(name=name)
        else:
            try:
                files = [self._file(request.file_by_filename, request.file_containing_symbol)]
            except KeyError:
                made.error_response.error_code = status_number("NOT_FOUND")
                unknown = request.file_by_filename or request.file_containing_symbol
                made.error_response.error_message = f"unknown file or symbol '{unknown:.200}'"
                files = []
            for file in files:  # and what it imports
                files += [one for one in file.dependencies if one not in files]
                made.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
        call.send(made.SerializeToString())

    def _file(self, name: str, symbol: str) -> Any:
        """Return the file of this name, or the one that defines a symbol; raises KeyError."""
        if name:
            return self._pool.FindFileByName(name)
        with contextlib.suppress(KeyError):
            return self._pool.FindFileContainingSymbol(symbol)
        return self._pool.FindFileContainingSymbol(symbol.rpartition(".")[0])  # the pool does not find methods
