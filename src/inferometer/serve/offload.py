"""Work outside of the event loop: when it leaves the loop, and the background threads that do it.

Work on more than `LARGE` bytes goes to a thread, everything else is done at once. Work in this sense is what the server
itself does to a request's bytes: parsing and writing JSON, compression, decoding images, walking long lists of strings,
copying from and to shared memory. (Models compute in threads of their own.)

Unlike those of asyncio's executor, the threads are daemons: the exit does not wait for a model that takes minutes to
load. The interpreter must not be torn down around one that is still working (perhaps in code of a foreign library):
`leave` ends the process immediately.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from inferometer.serve.models.types import Refused

OnDone = Callable[[Any, BaseException | None], None]  # on_done(result, error), called in the loop
LARGE = 64 * 1024
"""Bytes from which a thread costs less than blocking others: 1 to 3 ms of work."""
COPIED = 16
"""As many bytes are copied in the time in which one is parsed: work that only copies counts its bytes divided by this."""
STRING = 16
"""Bytes that each element of a list of strings counts, because each is looked at by itself."""
_THREADS = 2
"""Python computes in one thread at a time, but others can copy, compress and decompress meanwhile."""
UNREAD = 1 << 30
"""Bytes that a decoupled model may be ahead of its client; beyond that, the inference is stopped."""

_at_work: set[threading.Thread] = set()
_tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no references to them


class Threads:
    """Up to `most` threads, started when needed, for any number of jobs, which are started in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int = _THREADS, name: str = "offload") -> None:
        self._loop, self._most, self._name = loop, most, name
        self._jobs: SimpleQueue[tuple[Callable[[], Any], OnDone] | None] = SimpleQueue()
        self._threads = self._unfinished = 0

    def run(self, size: int, work: Callable[[], Any], then: OnDone) -> None:
        """Call `then` in the loop with the result of `work` or with its exception: before this returns if at most
        `LARGE` bytes are concerned, later otherwise. `then` must check whether its request is still wanted."""
        if size > LARGE:
            self.do(work, then)
        else:
            then(*_result(work))

    def do(self, work: Callable[[], Any], on_done: OnDone) -> None:
        """Start a job from the loop; raises RuntimeError if the system cannot create a thread."""
        if self._threads < min(self._most, self._unfinished + 1):
            threading.Thread(target=self._work, name=f"{self._name} {self._threads + 1}", daemon=True).start()
            self._threads += 1
        self._unfinished += 1
        self._jobs.put((work, on_done))

    def close(self) -> None:
        """Accept no more jobs; running ones continue, but their results are dropped once the loop is closed."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _work(self) -> None:
        thread = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            _at_work.add(thread)
            made = _result(job[0])
            _at_work.discard(thread)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._ended, job[1], *made)
            del job, made  # otherwise their data would be kept until the next job

    def _ended(self, on_done: OnDone, result: Any, error: BaseException | None) -> None:
        self._unfinished -= 1
        on_done(result, error)


def _result(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # even SystemExit: it is reported to the caller
        return None, error


def not_read() -> Refused:
    """Return a new error each time: an exception keeps the frames it passed through, and the data they hold."""
    return Refused("RESOURCE_EXHAUSTED", "the client does not read the responses as fast as the model produces them")


async def result_of(start: Callable[[OnDone], object]) -> Any:
    """Return the result that `start` passes to its callback, now or later; raises the error that it passes."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_done(result: Any, error: BaseException | None) -> None:
        if not future.done():  # else the caller has gone away
            future.set_result(result) if error is None else future.set_exception(error)

    start(on_done)
    return await future


async def in_thread(work: Callable[..., Any], *words: object) -> Any:
    """Run `work` in a thread of its own: for rare work that may take long."""
    threads = Threads(asyncio.get_running_loop(), 1, "loading")
    try:
        return await result_of(partial(threads.do, partial(work, *words)))
    finally:
        threads.close()


async def done_before(event: asyncio.Event, work: Awaitable[Any], seconds: float | None = None) -> bool:
    """Return whether the work was done before the event and within the time; otherwise it is abandoned."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    done, _ = await asyncio.wait((working, waiting), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in (working, waiting):
        task.cancel()
    await asyncio.gather(working, waiting, return_exceptions=True)
    if working in done:
        working.result()
    return working in done


def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run work in a task that goes on if its client goes away: it may load a model, or register memory."""
    _tasks.add(task := asyncio.ensure_future(work))
    task.add_done_callback(_tasks.discard)


def leave(status: int = 0) -> None:
    """End the process at once if a thread is still working; otherwise let it exit normally."""
    if _at_work:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
