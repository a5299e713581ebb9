"""Opens connections to one base URL, several at a time before t=0. The pools of HTTP/1.1 and HTTP/2 have this in common."""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial

from inferometer.engine.inflight import Flight
from inferometer.engine.reader import Reader
from inferometer.engine.resolver import Resolver
from inferometer.engine.transport import Transport, TransportOwner
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Fail, StreamResponse
from inferometer.wire.target import Target

OPENED_AT_ONCE = 64
"""Connections opened at the same time before t=0: servers' listen queues are short."""
NEVER = 1 << 62
"""An instant that never comes."""
STALE_WITHIN = 500_000_000
"""Nanoseconds after a send within which a close means that the server had closed the idle connection before the request arrived.
A later close means that the server saw the request and closed without a response."""


ResponseState = Decoder | StreamResponse
OnEnded = Callable[[Flight, int, End | Fail, ResponseState], None]


class Connector:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        target: Target,
        resolver: Resolver,
        reader: Reader,
        context: ssl.SSLContext | None,
    ) -> None:
        self.loop, self.context = loop, context
        self._target, self._resolver, self._reader = target, resolver, reader
        self._waiter: asyncio.Future[Fail | None] | None = None
        self._left = 0

    def new_transport(self, owner: TransportOwner) -> Transport:
        """Return a transport for `owner`, not yet open."""
        if self.context is None:
            return Transport(self.loop, self._reader, owner)
        from inferometer.engine.tls_transport import TlsTransport  # noqa: PLC0415 - few runs need it

        return TlsTransport(self.loop, self._reader, owner, self.context, self._target.host)

    def open(self, transport: Transport) -> None:
        """Start to connect, after looking up the name if necessary, which is part of the time to connect."""
        transport.connect_started = now()
        self._resolver.when_ready(partial(self._connect, transport))

    def _connect(self, transport: Transport) -> None:
        if not transport.is_closed:  # it may have been given up during the lookup
            family, address, transport.replica = self._resolver.next_address()
            transport.connect(family, address)

    # --- before t=0 ---

    async def several(self, count: int, begin: Callable[[], None], timeout: float) -> Fail | None:
        """Call `begin` `count` times, and wait until `count_down` was called as often. Return the failure if one fails, or if
        OPENED_AT_ONCE of them take longer than `timeout` seconds (0: no limit)."""
        for first in range(0, count, OPENED_AT_ONCE):
            together = min(OPENED_AT_ONCE, count - first)
            self._waiter, self._left = self.loop.create_future(), together
            for _ in range(together):
                begin()
            try:
                failed = await asyncio.wait_for(self._waiter, timeout or None)
            except TimeoutError:
                reason = f"no response on {self._left} of {together} connections within {timeout:g} s"
                failed = Fail("connect_timeout", reason)
            finally:
                self._waiter = None
            if failed is not None:
                return failed
        return None

    def count_down(self, fail: Fail | None = None) -> None:
        """Note that one of several has happened, or failed."""
        self._left -= 1
        if self._waiter is not None and not self._waiter.done() and (fail is not None or self._left == 0):
            self._waiter.set_result(fail)
