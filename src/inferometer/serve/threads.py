"""Work beside the event loop, in threads that the process does not wait for when it ends.

asyncio's own executor is joined at the end: a model that takes minutes to load would hold up the server's exit for as long.
These threads are daemons. Where one is still at work when all else is done, Python must not be taken down around it (what it
runs may be a foreign library's): `leave` ends the process there and then.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Told = Callable[[Any, BaseException | None], None]
"""told(result, error): in the loop."""

_at_work: set[threading.Thread] = set()


class Threads:
    """Up to `most` threads, started as they are needed, for any number of jobs, which are taken in turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int, name: str) -> None:
        self._loop, self._most, self._name = loop, most, name
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Told] | None] = SimpleQueue()
        self._threads = 0
        self._waiting = 0  # jobs that are not done, those at work included

    def do(self, work: Callable[[], Any], told: Told) -> None:
        """Called in the loop; RuntimeError where the system gives no thread."""
        if self._threads < min(self._most, self._waiting + 1):
            threading.Thread(target=self._work, name=f"{self._name} {self._threads + 1}", daemon=True).start()
            self._threads += 1
        self._waiting += 1
        self._jobs.put((work, told))

    def close(self) -> None:
        """Jobs that have begun go on; nobody hears of them once the loop is closed."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _work(self) -> None:
        thread = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            _at_work.add(thread)
            made = _done(*job)
            _at_work.discard(thread)
            self._tell(*made)
            del job, made  # or they would keep their bodies until the next one comes

    def _tell(self, told: Told, result: Any, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._ended, told, result, error)

    def _ended(self, told: Told, result: Any, error: BaseException | None) -> None:
        self._waiting -= 1
        told(result, error)


def _done(work: Callable[[], Any], told: Told) -> tuple[Told, Any, BaseException | None]:
    try:
        return told, work(), None
    except BaseException as error:  # even one that wants to exit: it is told to who asked
        return told, None, error


async def in_thread(work: Callable[..., T], *words: object) -> T:
    """In a thread of its own, for what is rare and may take long."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def told(result: T, error: BaseException | None) -> None:
        if future.done():  # who asked has gone
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    threads = Threads(loop, 1, "loading")
    threads.do(lambda: work(*words), told)
    threads.close()
    return await future


def leave(status: int = 0) -> None:
    """The process has nothing left to do: end it now if a thread is still at work, or else let it end by itself."""
    if any(thread.is_alive() for thread in _at_work):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
