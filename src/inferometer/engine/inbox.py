"""Bytes that were read and stamped, until they are decoded.

Work is done in phases: the loop reads all sockets that have bytes; then all of that is decoded; then all that ended is
recorded; then all that may follow is sent (shard.py). Each phase's code and data stay in the processor's cache while it
lasts, which is cheaper than doing it all for one and then for the next (four paired tries, 64 connections, answers in one
piece: 18 to 38 % less CPU a request). Nothing is measured late by it: the stamps are taken before. And nothing is sent late
by it: every few items, and between the phases, `between` looks whether a request is due.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Source(Protocol):
    """Where bytes come from (link.py)."""

    is_open: bool
    deliver: Callable[[bytes, int, int], None]


_EVERY = 2
"""Items, each of some ten microseconds, after which `between` is called: it makes up for what is due within 40 us or so
(stages.py), so that nothing longer than that may go on without it."""


class Inbox:
    __slots__ = ("_between", "_items", "_loop", "_then", "is_emptying")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None], between: Callable[[], None]) -> None:
        self._loop = loop
        self._then = then  # called when all that had come is decoded
        self._between = between
        self._items: list[tuple[Source, bytes, int, int]] = []
        self.is_emptying = False

    def put(self, source: Source, data: bytes, at: int, delay: int) -> None:
        """Bytes that arrived at `at` and lay unread for `delay`; none: the end."""
        items = self._items
        items.append((source, data, at, delay))
        count = len(items)
        if count == 1:
            self._loop.call_soon(self._empty)
        elif not count % _EVERY:
            self._between()

    def _empty(self) -> None:
        items, self._items = self._items, []
        self._between()
        self.is_emptying = True
        try:
            for number, (source, data, at, delay) in enumerate(items, 1):
                if source.is_open:
                    source.deliver(data, at, delay)
                if not number % _EVERY:
                    self._between()
        finally:
            self.is_emptying = False
        self._between()
        self._then()
