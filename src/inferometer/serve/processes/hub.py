"""All processes of the server. The hub starts them, passes on what concerns all of them, and stops when a front end fails.

With several front ends, this is all that its process does; with one, it is the front end as well. `Group` is what a front
end knows of the others: what concerns the whole server is carried out by all of them, and results are added up.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import ModelStatisticsResponse
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.models.types import Refused
from inferometer.serve.offload import done_before
from inferometer.serve.processes import model_process
from inferometer.serve.processes.link import Handlers, Link, attach, called
from inferometer.serve.settings import Settings
from inferometer.serve.sim.server import Simulator
from inferometer.serve.sim.truth import TruthLog
from inferometer.serve.sockets.listener import bound

_GRACE_S = 5.0
"""Time for processes to end by themselves when they are no longer needed."""
_COUNTED = ("metrics", "statistics")
"""What model processes contribute to; the rest concerns front ends only."""
_OF_THE_SERVER = ("nv_cpu_", "process_start_time_seconds", "inferometer_serve_info")
"""Metrics that are the same for all processes: those of the first one count."""
_MEANS = ("vllm:kv_cache_usage_perc",)
_KEYS = {"model_stats": attrgetter("name", "version"), "batch_stats": attrgetter("batch_size")}
"""What identifies the elements of lists in statistics: those with the same are added up."""


class Hub(contextlib.AbstractAsyncContextManager["Hub"]):
    """The other processes of the server."""

    def __init__(self) -> None:
        self.handlers: Handlers = {"all": self._all, "model": self._model}
        """What front ends call the hub for, and what this process does for all if it is a front end itself."""
        self._front_ends: Sequence[Link] = ()
        self._models: dict[str, Link] = {}  # the newest process of each
        self._started: dict[str, asyncio.Future[Any]] = {}  # addresses and descriptions, by load request and name
        self._processes: dict[Process, tuple[Link, asyncio.Task[None]]] = {}  # running, with what waits for their end
        self._serial = 0

    async def call(self, name: str, *arguments: Any) -> Any:
        """Do what front ends call the hub for, as their links do."""
        return await self.handlers[name](*arguments)

    async def _all(self, operation: str, *arguments: Any) -> list[Any]:
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
            has_ended = isinstance(result, Refused) and result.code == "UNAVAILABLE"
            if isinstance(result, BaseException) and not (has_ended and operation in _COUNTED):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _model(self, key: str, *arguments: Any) -> Any:
        """Return a model's address and description. The first call with this key starts its process; others wait."""
        if key not in self._started:
            self._started[key] = asyncio.ensure_future(self._start_model(*arguments))
        return await asyncio.shield(self._started[key])

    async def _start_model(self, name: str, *arguments: Any) -> Any:
        link, _ = await self._spawn(f"the process of model {name}")
        try:
            started = await link.call("model", name, *arguments)
        except BaseException:
            link.close()
            raise
        self._models[name] = link
        return started

    async def _spawn(self, name: str) -> tuple[Link, Process]:
        if not hasattr(os, "memfd_create"):
            raise UserError(f"{name} cannot be started: several processes need Linux", "serve with one process")
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "inferometer.serve.processes", str(theirs.fileno()), str(os.getpid()),
                stdin=DEVNULL, stdout=2, start_new_session=True, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        link = await attach(ours, self.handlers, name)
        self._processes[process] = link, asyncio.create_task(self._watch(process, name))
        return link, process

    async def _watch(self, process: Process, name: str) -> None:
        status = await process.wait()
        del self._processes[process]
        if status not in (0, -signal.SIGTERM):  # which is how we stop a front end
            how = f"signal {-status}" if status < 0 else f"status {status}"
            print(f"{name} (pid {process.pid}) ended with {how}", file=sys.stderr, flush=True)

    async def __aexit__(self, *error: object) -> None:
        """End all processes: they end by themselves when their link is closed."""
        ended = [task for _, task in self._processes.values()]
        for link, _ in self._processes.values():
            link.close()
        if ended:
            await asyncio.wait(ended, timeout=_GRACE_S)
            for process in self._processes:
                process.kill()
            await asyncio.wait(ended)

    async def supervise(
        self, settings: Settings, ready: Callable[[Any], None], stop: asyncio.Event, at_once: asyncio.Event
    ) -> None:
        """Run the front ends until `stop`, or until one of them ends; `ready` is called when all of them listen."""
        addresses: list[Any] = []
        failures: list[UserError] = []

        def listening(at: Any) -> None:
            addresses.append(at)
            if len(addresses) == settings.processes:
                ready(at)

        async def run(link: Link) -> None:
            try:
                await link.call("front_end", shared)
            except UserError as error:
                failures.append(error)
            except Refused:  # it died, which `_watch` reports
                pass
            if not stop.is_set():
                what = f"{link.other} ended unexpectedly, so the server stopped"
                failures.append(UserError(what, "see above, and start it again"))
                stop.set()

        self.handlers["ready"] = listening
        if settings.sim is not None and settings.sim.truth is not None:
            TruthLog(settings.sim.truth).close()  # the front ends append to it
        with contextlib.ExitStack() as held:  # the ports, reserved, but not listening
            with contextlib.ExitStack() as tried:  # a shared socket would not notice that another server listens
                bound(settings, tried)
            sockets = bound(settings, held, shared=True)
            ports: dict[str, Any] = {name: sock.getsockname()[1] for name, sock in sockets.items()}
            shared = msgspec.structs.replace(settings, **ports)
            names = [f"front end {i} of {settings.processes}" for i in range(1, settings.processes + 1)]
            self._front_ends, processes = zip(*await asyncio.gather(*map(self._spawn, names)), strict=True)
            runs = asyncio.gather(*map(run, self._front_ends))
            await stop.wait()
            # The second signal stops at once.
            for signalled, patience in ((at_once, settings.drain + _GRACE_S), (asyncio.Event(), _GRACE_S)):
                for process in [process for process in processes if process.returncode is None]:
                    process.terminate()
                await done_before(signalled, asyncio.shield(runs), patience)
        if failures:
            raise failures[0]


class Group:
    """The processes of the server, of which this one is a front end."""

    def __init__(self, hub: Hub | Link, models: Models, simulator: Simulator | None) -> None:
        """Take part, with these models. `hub` is in this process, or at the other end of a link."""
        self.is_shared = isinstance(hub, Link)  # among several front ends
        self._call, self._models, models.group = hub.call, models, self
        hub.handlers |= models.operations | model_process.counted(models, simulator.metrics if simulator else bytes)

    async def everywhere(self, operation: str, *arguments: Any) -> None:
        """Carry out one of Models.operations in all front ends."""
        await self._call("all", operation, *arguments)

    async def metrics(self) -> bytes:
        return _metrics(await self._call("all", "metrics"))

    async def statistics(self, name: str, version: str) -> Any:
        return _statistics(await self._call("all", "statistics", name, version))

    async def model(self, source: ModelSource, config: str, serial: int) -> Model:
        """Return a model that runs in a process of its own, which is started by the first front end that needs it."""
        given = source.name, source.path and str(source.path), config, self._models.device, self._models.overrides
        started = await self._call("model", f"{serial} {source.name}", *given)
        return await model_process.bring_up(self._models, source.name, *started)


def _metrics(pages: Sequence[bytes]) -> bytes:
    """Return one page in Prometheus' text format, with the sums of all samples."""
    if len(pages) == 1:
        return pages[0]
    families: dict[str, dict[str, list[float]]] = {}
    for family in b"".join(pages).decode().split("# HELP ")[1:]:
        text, kind, *lines = family.splitlines()
        samples = families.setdefault(f"# HELP {text}\n{kind}\n", {})
        for sample, _, value in (line.rpartition(" ") for line in lines):
            samples.setdefault(sample, []).append(msgspec.json.decode(value))
    together = ""
    for head, samples in families.items():
        together += head
        for sample, values in samples.items():
            total = values[0] if sample.startswith(_OF_THE_SERVER) else sum(values)
            together += f"{sample} {total / len(values) if sample.startswith(_MEANS) else total}\n"
    return together.encode()


def _statistics(parts: Sequence[bytes]) -> Any:
    """Return one ModelStatisticsResponse with the sums per model, in the order of their names."""
    total = ModelStatisticsResponse()
    for part in parts:
        _add(total, ModelStatisticsResponse.FromString(part))
    total.model_stats.sort(key=_KEYS["model_stats"])
    return total


def _add(total: Any, more: Any) -> None:
    total.SetInParent()
    for field, value in more.ListFields():
        before = getattr(total, field.name)
        if key := _KEYS.get(field.name):
            known = {key(one): one for one in before}
            for one in value:
                _add(known.get(key(one)) or before.add(), one)
        elif field.message_type is not None:
            _add(before, value)
        elif field.name in ("name", "version", "batch_size", "last_inference"):
            setattr(total, field.name, max(before, value))
        else:
            setattr(total, field.name, before + value)
