"""How to reach one base URL, and the opening of several connections to it before t=0."""

import asyncio
import ssl
from collections.abc import Callable

import msgspec

from inferometer.engine.reader import Reader
from inferometer.engine.tls_transport import TlsTransport
from inferometer.engine.transport import Transport, User
from inferometer.types import Fail
from inferometer.wire.target import Target

AT_ONCE = 64
"""Connections opened at the same time before t=0: servers' listen queues are short."""


class Connector(msgspec.Struct, frozen=True):
    loop: asyncio.AbstractEventLoop
    target: Target
    address: tuple[int, tuple[object, ...]]
    inbox: Reader
    context: ssl.SSLContext | None

    def link(self, user: User) -> Transport:
        """A link of `user`'s, not yet opened."""
        if self.context is None:
            return Transport(self.loop, self.inbox, user)
        return TlsTransport(self.loop, self.inbox, user, self.context, self.target.host)

    def open(self, link: Transport) -> None:
        link.connect(*self.address)


class Countdown:
    """Waits until so many things have happened, or one has failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[Fail | None] | None = None
        self._left = 0

    async def all(self, count: int, begin: Callable[[], None], patience: float) -> Fail | None:
        """Begin `count` times; why not, if one fails or all take longer than `patience` seconds (0: no limit)."""
        if not count:
            return None
        self._waiter, self._left = self._loop.create_future(), count
        for _ in range(count):
            begin()
        try:
            return await asyncio.wait_for(self._waiter, patience or None)
        except TimeoutError:
            return Fail("connect_timeout", f"no answer on {self._left} of {count} connections within {patience:g} s")
        finally:
            self._waiter = None

    def one_less(self, fail: Fail | None = None) -> None:
        """One has happened, or failed."""
        self._left -= 1
        if self._waiter is not None and not self._waiter.done() and (fail is not None or self._left == 0):
            self._waiter.set_result(fail)

    @property
    def is_awaited(self) -> bool:
        return self._waiter is not None
