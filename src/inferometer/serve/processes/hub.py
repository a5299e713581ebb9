"""The process that starts the others, passes on what concerns all of them, and stops when a front end fails.

With several front ends, this is all it does. With one, it is the front end as well, and the others are models.
"""

import asyncio
import contextlib
import math
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve import ports
from inferometer.serve.models.types import Refused
from inferometer.serve.processes.link import Handlers, Link, attach, called
from inferometer.serve.settings import Settings
from inferometer.serve.sim.truth import TruthLog

_FIRST = asyncio.FIRST_COMPLETED
_GRACE_S = 5.0
"""Time for processes to end by themselves when they are no longer needed."""
_COUNTED = ("metrics", "statistics")
"""What model processes contribute to; the rest concerns front ends only."""


class Hub:
    """The other processes of the server."""

    def __init__(self) -> None:
        self.handlers: Handlers = {}
        """What this process itself does for the group if it is a front end."""
        self._counter = -1
        self._front_ends: list[Link] = []
        self._models: dict[str, Link] = {}
        """The current process of each model."""
        self._addresses: dict[str, asyncio.Future[str]] = {}
        """Where the processes of models listen, by the number of the load request and the name."""
        self._processes: dict[asyncio.subprocess.Process, tuple[Link, asyncio.Task[None]]] = {}
        self._stopped: set[asyncio.subprocess.Process] = set()
        """Processes whose end is not reported."""
        self._serial = 0

    async def call(self, name: str, *arguments: Any) -> Any:
        """Do what front ends call the hub for, as their links do."""
        return await (self.all if name == "all" else self.start_model)(*arguments)

    async def all(self, operation: str, *arguments: Any) -> list[Any]:
        """Call all processes. Return their results, or raise the first error."""
        if operation == "load":
            self._serial += 1
            arguments = (*arguments, self._serial)
        links = [*self._front_ends, *(self._models.values() if operation in _COUNTED else ())]
        calls = [link.call(operation, *arguments) for link in links]
        if operation in self.handlers:
            calls.append(called(self.handlers[operation], arguments))
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and (operation not in _COUNTED or not _is_ended(result)):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    # --- processes ---

    async def start_model(self, key: str, *arguments: Any) -> str:
        """Return the address of a model's process. The first call with this key starts it, and the others wait."""
        if key not in self._addresses:
            name = key.partition(" ")[2]
            self._addresses[key] = starting = asyncio.ensure_future(self._start_model(name, *arguments))
            starting.add_done_callback(lambda made: made.cancelled() or made.exception())  # if no caller waits for it
        return await asyncio.shield(self._addresses[key])

    async def _start_model(self, name: str, *arguments: Any) -> str:
        link, process = await self._spawn(f"the process of model {name}", {})
        try:
            address: str = await link.call("model", *arguments)
        except Exception as error:
            link.close()
            if isinstance(error, Refused) and process in self._processes:
                await self._processes[process][1]  # which reports how it ended
            raise
        self._models[name] = link
        link.lost.add_done_callback(lambda _: self._models.pop(name) if self._models.get(name) is link else None)
        return address

    async def _spawn(self, name: str, handlers: Handlers) -> tuple[Link, asyncio.subprocess.Process]:
        if not hasattr(os, "memfd_create"):
            raise UserError(f"{name} cannot be started: several processes need Linux", "serve with one process")
        if self._counter < 0:
            self._counter = os.memfd_create("requests")
        ours, theirs = socket.socketpair()
        with theirs:
            files = theirs.fileno(), self._counter
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "inferometer.serve.processes", str(files[0]), str(os.getpid()), str(files[1]),
                stdin=asyncio.subprocess.DEVNULL, stdout=2, start_new_session=True, pass_fds=files,
            )  # fmt: skip
        link = await attach(ours, handlers, name)
        self._processes[process] = link, asyncio.create_task(self._watch(process, name))
        return link, process

    async def _watch(self, process: asyncio.subprocess.Process, name: str) -> None:
        status = await process.wait()
        del self._processes[process]
        if status and process not in self._stopped:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            print(f"{name} (pid {process.pid}) ended with {how}", file=sys.stderr, flush=True)

    # --- several front ends ---

    async def supervise(
        self, settings: Settings, ready: Callable[[Any], None], stop: asyncio.Event, at_once: asyncio.Event
    ) -> None:
        """Run the front ends until `stop`, or until one of them ends; `ready` is called when all of them listen."""
        is_ready, addresses = asyncio.get_running_loop().create_future(), []

        def listening(at: Any) -> None:
            addresses.append(at)
            if len(addresses) == settings.processes:
                is_ready.set_result(at)

        loaded = asyncio.Barrier(settings.processes).wait
        handlers: Handlers = {
            "all": self.all, "start_model": self.start_model, "loaded": loaded, "ready": listening,
        }  # fmt: skip
        if settings.sim is not None and settings.sim.truth is not None:
            TruthLog(settings.sim.truth).close()  # the front ends append to it
        with contextlib.ExitStack() as held:
            encoded = msgspec.json.encode(_shares(settings, held))
            names = [f"front end {i} of {settings.processes}" for i in range(1, settings.processes + 1)]
            made = await asyncio.gather(*(self._spawn(name, handlers) for name in names))
            self._front_ends = [link for link, _ in made]
            runs = [asyncio.ensure_future(link.call("front_end", encoded)) for link in self._front_ends]
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait((*runs, stopping, is_ready), return_when=_FIRST)
            if is_ready.done():
                ready(is_ready.result())
                await asyncio.wait((*runs, stopping), return_when=_FIRST)
            failed = _failure(names, runs, stop.is_set())
            rest: asyncio.Future[Any] = asyncio.gather(*runs, return_exceptions=True)
            forced: asyncio.Future[Any] = asyncio.ensure_future(at_once.wait())
            for patience in (settings.drain + _GRACE_S, _GRACE_S):  # the second signal stops at once
                for (_, process), run in zip(made, runs, strict=True):
                    if not run.done():
                        self._stopped.add(process)
                        process.terminate()
                await asyncio.wait({rest} if forced.done() else {rest, forced}, timeout=patience, return_when=_FIRST)
            stopping.cancel()
            forced.cancel()
            if error := failed or _failure(names, runs, True):
                raise error

    # --- the end ---

    async def __aenter__(self) -> "Hub":
        return self

    async def __aexit__(self, *error: object) -> None:
        """End all processes: those that are not needed end by themselves when their link is closed."""
        self._stopped.update(self._processes)
        processes = [(process, ended) for process, (_, ended) in self._processes.items()]
        for link, _ in self._processes.values():
            link.close()
        if processes:
            await asyncio.wait([ended for _, ended in processes], timeout=_GRACE_S)
        for process, ended in processes:
            if not ended.done():
                process.kill()
                await ended
        if self._counter >= 0:
            os.close(self._counter)


def _shares(settings: Settings, held: contextlib.ExitStack) -> Settings:
    """Return the settings of a front end. The ports stay reserved, but not listening, until `held` ends."""
    with contextlib.ExitStack() as tried:  # a shared socket would not notice that another server listens
        ports.bound_all(settings.host, settings.ports, tried, shared=False)
    sockets = ports.bound_all(settings.host, settings.ports, held, shared=True)
    numbers: dict[str, Any] = {name: sock.getsockname()[1] for name, sock in sockets.items()}
    share = math.ceil(settings.limits.requests / settings.processes)
    return msgspec.structs.replace(settings, limits=msgspec.structs.replace(settings.limits, requests=share), **numbers)


def _failure(names: list[str], runs: Sequence[asyncio.Future[Any]], is_stopped: bool) -> UserError | None:
    """Return the error of the first front end that ended with one, or ended although the server was not stopped."""
    for name, run in zip(names, runs, strict=True):
        if run.done():
            error = run.exception()
            if isinstance(error, UserError):
                return error
            if not is_stopped:
                return UserError(f"{name} ended unexpectedly, so the server stopped", "see above, and start it again")
    return None


def _is_ended(error: BaseException) -> bool:
    return isinstance(error, Refused) and error.code == "UNAVAILABLE"
