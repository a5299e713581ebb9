"""Wraps every method of the gRPC server with access control and error handling.

A Refused becomes the call's status; any other exception becomes INTERNAL with one line, so that nothing is printed and
the server continues. Methods take and return bytes, so that invalid messages are handled here, too.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn
from urllib.parse import quote, unquote

import grpc  # type: ignore[import-untyped]
import msgspec

from inferometer.errors import UserError
from inferometer.serve.http.token import why_not
from inferometer.serve.models.types import Refused

Context = Any
"""A grpc.aio.ServicerContext whose messages are bytes."""
Unary = Callable[[bytes, Context], Awaitable[bytes]]
Streaming = Callable[[Context], Awaitable[None]]
"""A method that reads with context.read() and writes with context.write()."""

_MAX_DETAILS = 1000
"""Maximum length of a status message: it is sent in the trailers, which clients limit to a few kB."""


class Service(msgspec.Struct, frozen=True):
    """A service's methods by name. Methods in `open` require no token."""

    name: str
    unary: Mapping[str, Unary] = {}
    streaming: Mapping[str, Streaming] = {}
    open: frozenset[str] = frozenset()


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    """The methods of all services, by path."""

    def __init__(self, services: Sequence[Service], token: str | None = None, log: bool = False) -> None:
        self.begun = 0
        """Number of calls started, whatever their outcome."""
        self._token, self._is_logged = token, log
        self._open: set[str] = set()
        self._handlers: dict[str, Any] = {}
        for service in services:
            made = {name: _unary(call) for name, call in service.unary.items()}
            made |= {name: _streaming(call) for name, call in service.streaming.items()}
            for name, (kind, handle) in made.items():
                path = f"/{service.name}/{name}"
                self._handlers[path] = kind(_logged(path, handle) if log else handle)
                if name in service.open:
                    self._open.add(path)

    def service(self, handler_call_details: Any) -> Any:
        self.begun += 1
        path = handler_call_details.method
        if self._token is not None and path not in self._open:
            why = why_not(self._token, _authorization(handler_call_details.invocation_metadata))
            if why:
                return self._turning_away(path, Refused("UNAUTHENTICATED", why))
        found = self._handlers.get(path)
        return found or self._turning_away(path, Refused("UNIMPLEMENTED", f"unknown method {path}"))

    def _turning_away(self, path: str, refused: Refused) -> Any:
        """Refuse the call without reading anything of it."""

        async def turned_away(context: Context) -> None:
            raise refused

        kind, handle = _streaming(turned_away)
        return kind(_logged(path, handle) if self._is_logged else handle)


def _authorization(metadata: Any) -> bytes:
    for key, value in metadata or ():
        if key == "authorization" and isinstance(value, str):
            return value.encode()
    return b""


# --- what failures become --------------------------------------------------------------------------------------------

Handle = Callable[..., Awaitable[Any]]


def _unary(call: Unary) -> tuple[Callable[[Handle], Any], Handle]:
    async def handle(data: bytes, context: Context) -> bytes:
        try:
            return await call(data, context)
        except Exception as error:
            del data
            await _refuse(context, error)

    return grpc.unary_unary_rpc_method_handler, handle


def _streaming(call: Streaming) -> tuple[Callable[[Handle], Any], Handle]:
    """Handle all kinds of methods alike: to the server, a client that sends one message is a stream of one."""

    async def handle(_: Any, context: Context) -> None:
        try:
            await call(context)
        except Exception as error:
            await _refuse(context, error)

    return grpc.stream_stream_rpc_method_handler, handle


async def _refuse(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    refused = refusal(error)
    error.__traceback__ = error.__context__ = (
        None  # gRPC keeps the call's last exception: drop its frames and their data
    )
    if isinstance(error, grpc.aio.InternalError):  # the client is gone, and gRPC would leak the memory of an error
        raise asyncio.CancelledError from None
    try:
        await context.abort(grpc.StatusCode[refused.code], shown(refused.message))
    except (grpc.aio.UsageError, grpc.aio.InternalError):  # the client is gone
        raise asyncio.CancelledError from None
    raise AssertionError("abort raises")


def refusal(error: Exception) -> Refused:
    """Convert an exception to the error that the client receives."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, UserError):
        return Refused("INVALID_ARGUMENT", str(error))
    if isinstance(error, MemoryError):
        return Refused("RESOURCE_EXHAUSTED", "the server does not have enough memory for this request")
    return Refused("INTERNAL", f"{type(error).__name__}: {error}")


def shown(message: str) -> str:
    """Return one line of bounded length that can be sent."""
    line = " ".join(message.split()).encode("utf-8", "replace").decode()
    return line if len(line) <= _MAX_DETAILS else line[: _MAX_DETAILS - 3] + "..."


# --- the access log --------------------------------------------------------------------------------------------------


def _logged(path: str, handle: Handle) -> Handle:
    async def logged(first: Any, context: Context) -> Any:
        start, status = time.monotonic_ns(), "CANCELLED"
        client = client_of(context.peer())  # gRPC no longer reports it once the call is over
        try:
            answer = await handle(first, context)
            status = "OK"
            return answer
        except grpc.aio.AbortError:
            status = context.code().name
            raise
        finally:
            spent = (time.monotonic_ns() - start) / 1e6
            when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
            sys.stderr.write(f"{when}Z {client} GRPC {quote(path)} {status} {spent:.3f} ms\n")

    return logged


def client_of(peer: str) -> str:
    """Return HOST:PORT for gRPC's ipv4:HOST:PORT and ipv6:%5BHOST%5D:PORT."""
    return unquote(peer).partition(":")[2] or "-"
