"""Opens connections to one base URL, several at a time before t=0."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

import msgspec

from inferometer.engine.reader import Reader
from inferometer.engine.resolver import Resolver
from inferometer.engine.transport import Transport, TransportOwner
from inferometer.timing.clock import now
from inferometer.types import Fail
from inferometer.wire.target import Target

OPENED_AT_ONCE = 64
"""Connections opened at the same time before t=0: servers' listen queues are short."""


class Connector(msgspec.Struct, frozen=True):
    loop: asyncio.AbstractEventLoop
    target: Target
    resolver: Resolver
    reader: Reader
    context: ssl.SSLContext | None

    def new_transport(self, owner: TransportOwner) -> Transport:
        """Return a transport for `owner`, not yet open."""
        if self.context is None:
            return Transport(self.loop, self.reader, owner)
        from inferometer.engine.tls_transport import TlsTransport  # noqa: PLC0415 - few runs need it

        return TlsTransport(self.loop, self.reader, owner, self.context, self.target.host)

    def open(self, transport: Transport) -> None:
        """Start to connect, after looking up the name if necessary, which is part of the time to connect."""
        transport.connect_started = now()
        self.resolver.when_ready(partial(self._connect, transport))

    def _connect(self, transport: Transport) -> None:
        if not transport.is_closed:  # it may have been given up during the lookup
            family, address, transport.replica = self.resolver.next_address()
            transport.connect(family, address)


class Countdown:
    """Waits until a number of things have happened, or one has failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[Fail | None] | None = None
        self._left = 0

    async def wait(self, count: int, begin: Callable[[], None], timeout: float) -> Fail | None:
        """Call `begin` `count` times and wait for all of them. Return the failure if one fails, or if they take longer than
        `timeout` seconds (0: no limit)."""
        if not count:
            return None
        self._waiter, self._left = self._loop.create_future(), count
        for _ in range(count):
            begin()
        try:
            return await asyncio.wait_for(self._waiter, timeout or None)
        except TimeoutError:
            return Fail("connect_timeout", f"no response on {self._left} of {count} connections within {timeout:g} s")
        finally:
            self._waiter = None

    def count_down(self, fail: Fail | None = None) -> None:
        """Note that one has happened, or failed."""
        self._left -= 1
        if self._waiter is not None and not self._waiter.done() and (fail is not None or self._left == 0):
            self._waiter.set_result(fail)

    @property
    def is_awaited(self) -> bool:
        return self._waiter is not None
