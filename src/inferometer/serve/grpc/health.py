"""grpc.health.v1: Check and Watch for the server, its services, and each model by name."""

import asyncio
from collections.abc import Callable

from inferometer.serve.grpc.call import Call
from inferometer.serve.grpc.messages import Data, parse
from inferometer.serve.grpc.server import Service
from inferometer.serve.models.types import Refused
from inferometer.wire import protobuf

NAME = "grpc.health.v1.Health"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3

_SCHEMA = protobuf.bundled("health")
_Request = _SCHEMA.message("grpc.health.v1.HealthCheckRequest")
_Response = _SCHEMA.message("grpc.health.v1.HealthCheckResponse")

_LOOK_S = 0.5
"""Interval for polling watched models: they come and go without notification."""


class Health:
    """The health service for `services`, and for everything that `is_known`. `set_serving` notifies watchers at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        services: tuple[str, ...],
        is_ready: Callable[[str], bool],
        is_known: Callable[[str], bool],
    ) -> None:
        self._loop, self._services, self._is_ready, self._is_known = loop, ("", *services), is_ready, is_known
        self._serving = True
        self._watches: dict[Call, tuple[str, int]] = {}  # the service, and the status that was sent last
        self._timer: asyncio.TimerHandle | None = None
        methods = frozenset(("Check", "Watch"))
        self.service = Service(NAME, {"Check": self._check}, {"Watch": self._watch}, methods, self.close)

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
        service = parse(_Request, data).service
        status = self.status(service)
        if status == SERVICE_UNKNOWN:
            raise Refused("NOT_FOUND", f"unknown service or model '{service}'")
        call.reply((_message(status),))

    def _watch(self, call: Call) -> None:
        def requested(_: Call, data: Data) -> None:
            self._watches.setdefault(call, (parse(_Request, data).service, -1))
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
    return bytes(_Response(status=status).SerializeToString())
