"""grpc.health.v1: Check and Watch for the server, its services, and each model by name."""

import asyncio
from collections.abc import Callable

import grpc  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError

from inferometer.serve.kserve.handlers import Context, Service
from inferometer.serve.kserve.messages import KSERVE_SERVICE, OWN_SERVICE
from inferometer.serve.models.types import Refused
from inferometer.wire import protobuf

SERVICE = "grpc.health.v1.Health"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3

_SCHEMA = protobuf.bundled("health")
_Request = _SCHEMA.message("grpc.health.v1.HealthCheckRequest")
_Response = _SCHEMA.message("grpc.health.v1.HealthCheckResponse")

_LOOK_S = 0.5
"""Interval for polling a watched model: models come and go without notification."""


class Health:
    """The health service. `set_serving` notifies all watchers at once."""

    def __init__(self, is_ready: Callable[[str], bool], is_known: Callable[[str], bool]) -> None:
        self._is_ready, self._is_known = is_ready, is_known
        self._serving = True
        self._closed = False
        self._changed: set[asyncio.Event] = set()
        self.service = Service(
            SERVICE,
            unary={"Check": self._check},
            streaming={"Watch": self._watch},
            open=frozenset(("Check", "Watch")),
        )

    def set_serving(self, serving: bool) -> None:
        self._serving = serving
        self._tell()

    def close(self) -> None:
        """Report NOT_SERVING to all watchers and end their calls."""
        self._closed, self._serving = True, False
        self._tell()

    def _tell(self) -> None:
        for event in self._changed:
            event.set()

    def status(self, service: str) -> int:
        if service in ("", KSERVE_SERVICE, OWN_SERVICE):
            return SERVING if self._serving else NOT_SERVING
        if not self._is_known(service):
            return SERVICE_UNKNOWN
        return SERVING if self._serving and self._is_ready(service) else NOT_SERVING

    async def _check(self, data: bytes, context: Context) -> bytes:
        service = _asked(data)
        status = self.status(service)
        if status == SERVICE_UNKNOWN:
            raise Refused("NOT_FOUND", f"unknown service or model '{service}'")
        return _message(status)

    async def _watch(self, context: Context) -> None:
        data = await context.read()
        if data is grpc.aio.EOF:
            raise Refused("INVALID_ARGUMENT", "the call contains no request")
        service, said = _asked(data), -1
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            while True:
                changed.clear()
                status, closed = self.status(service), self._closed
                if status != said:
                    said = status
                    await context.write(_message(status))
                if closed:
                    return
                await _either(changed, _LOOK_S)
        finally:
            self._changed.discard(changed)


async def _either(changed: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        pass


def _asked(data: bytes) -> str:
    try:
        return str(_Request.FromString(data).service)
    except DecodeError:
        raise Refused("INTERNAL", "the message is not a valid HealthCheckRequest") from None


def _message(status: int) -> bytes:
    data: bytes = _Response(status=status).SerializeToString()
    return data
