"""The addresses of one base URL: which one the next connection goes to.

A name is looked up again when a connection is opened and the last lookup is LOOKUP_EVERY old, so that a run notices replicas that come
and go. Several addresses are used in turn, so that all replicas behind a name get connections. Only addresses of the family that the
server was reached over before the run count: a server that listens on 127.0.0.1 alone may have the name localhost, which is also ::1.
A lookup blocks, so it runs in a thread; the connections that need it wait, which counts as time to connect.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
import threading
from collections.abc import Callable
from functools import partial

from inferometer.engine.job import Address
from inferometer.timing.clock import now
from inferometer.units import NS

LOOKUP_EVERY = NS
"""Nanoseconds for which the result of a lookup is used."""


class Resolver:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, host: str, address: Address, number_of: Callable[[str], int]
    ) -> None:
        """`address` is the one that the server was reached at. `number_of` returns the number of an address in the records."""
        self._loop = loop
        self.host = host
        self._family = address[0]
        self._port = address[1][1]
        self._number_of = number_of
        self._addresses = [self._numbered(address[1])]
        self._next = 0
        self._expires = 1 << 62 if _is_literal(host) else 0  # when the name has to be looked up again
        self._waiting: list[Callable[[], None]] = []
        self.dead: dict[tuple[object, ...], str] = {}
        """Addresses that are left out, and why."""
        self.failure = ""
        """Why the last lookup that failed did; empty if none has."""

    async def leave_out_dead(self, timeout: float) -> None:
        """Leave out the addresses of the name that accept no connection within `timeout` seconds (0: no limit), unless none does."""
        ready = self._loop.create_future()
        self.when_ready(lambda: ready.set_result(None))
        await ready
        addresses = [address for address, _ in self._addresses] if len(self._addresses) > 1 else []
        reasons = await asyncio.gather(*(self._refusal(address, timeout) for address in addresses))
        if not all(reasons):
            self.dead = {address: reason for address, reason in zip(addresses, reasons, strict=True) if reason}
            self._addresses = [each for each in self._addresses if each[0] not in self.dead]

    async def _refusal(self, address: tuple[object, ...], timeout: float) -> str:
        """Why an address accepts no connection; empty if it does."""
        try:
            with socket.socket(self._family, socket.SOCK_STREAM) as sock:
                sock.setblocking(False)
                async with asyncio.timeout(timeout or None):
                    await self._loop.sock_connect(sock, address)
        except OSError as error:  # a TimeoutError, too
            return os.strerror(error.errno).lower() if error.errno else f"no connection within {timeout:g} s"
        return ""

    def when_ready(self, connect: Callable[[], None]) -> None:
        """Call `connect` now, or as soon as the name has been looked up again if that is necessary."""
        if now() < self._expires:
            connect()
            return
        self._waiting.append(connect)
        if len(self._waiting) == 1:
            threading.Thread(target=self._look_up, name="lookup", daemon=True).start()

    def next_address(self) -> tuple[int, tuple[object, ...], int]:
        """The address for the next connection: its family, the address, and its number in the records."""
        self._next = (self._next + 1) % len(self._addresses)
        return self._family, *self._addresses[self._next]

    def _numbered(self, address: tuple[object, ...]) -> tuple[tuple[object, ...], int]:
        host, port = address[:2]
        try:
            return address, self._number_of(f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}")
        except OSError:  # the disk is full, which ends the run elsewhere
            return address, -1

    # --- in the thread of a lookup ---

    def _look_up(self) -> None:
        found, failure = list[tuple[object, ...]](), ""
        try:
            infos = socket.getaddrinfo(self.host, str(self._port), type=socket.SOCK_STREAM)
            found = [tuple(address) for family, _, _, _, address in infos if family == self._family]
            if not found:
                failure = "it has no address of the kind that the server was reached at before"
        except (OSError, UnicodeError) as error:
            failure = getattr(error, "strerror", None) or str(error)
        with contextlib.suppress(RuntimeError):  # the run has ended, and its loop is closed
            self._loop.call_soon_threadsafe(partial(self._looked_up, found, failure))

    # --- in the loop again ---

    def _looked_up(self, found: list[tuple[object, ...]], failure: str) -> None:
        """Take over the addresses, or keep the last ones if there are none, and let connections continue."""
        self._expires = now() + LOOKUP_EVERY
        if failure:
            self.failure = failure
        else:
            usable = [address for address in dict.fromkeys(found) if address not in self.dead]
            self._addresses = [self._numbered(address) for address in usable] or self._addresses
        waiting, self._waiting = self._waiting, []
        for connect in waiting:
            connect()


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
