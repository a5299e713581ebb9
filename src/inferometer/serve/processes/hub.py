"""All processes of the server. The hub starts them, passes on what concerns all of them, and stops when a front end fails.

With several front ends, this is all that the hub's process does. With one, it is the front end as well, and the others
are models. `Group` is what a front end knows of the others: an operation that concerns the whole server goes to all of
them, each carries out its own part, and results are added up.
"""

import asyncio
import contextlib
import math
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve import ports
from inferometer.serve.kserve.messages import ModelStatistics, ModelStatisticsResponse
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

_GRACE_S = 5.0
"""Time for processes to end by themselves when they are no longer needed."""
_COUNTED = ("metrics", "statistics")
"""What model processes contribute to; the rest concerns front ends only."""
_OF_THE_SERVER = ("nv_cpu_", "process_start_time_seconds", "inferometer_serve_info")
"""Metrics that are the same for all processes: those of the first one count."""
_MEANS = ("vllm:kv_cache_usage_perc",)


class Hub(contextlib.AbstractAsyncContextManager["Hub"]):
    """The other processes of the server."""

    def __init__(self) -> None:
        self.handlers: Handlers = {}
        """What this process itself does for the group if it is a front end."""
        self._calls: Handlers = {"all": self._all, "start_model": self._start_model}
        """What front ends call the hub for."""
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
        return await self._calls[name](*arguments)

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

    # --- processes ---

    async def _start_model(self, key: str, name: str, *arguments: Any) -> str:
        """Return the address of a model's process. The first call with this key starts it, and the others wait."""
        if key not in self._addresses:
            self._addresses[key] = starting = asyncio.ensure_future(self._started_model(name, *arguments))
            starting.add_done_callback(lambda made: made.cancelled() or made.exception())  # if no caller waits for it
        return await asyncio.shield(self._addresses[key])

    async def _started_model(self, name: str, *arguments: Any) -> str:
        link, process = await self._spawn(f"the process of model {name}")
        try:
            address: str = await link.call("model", name, *arguments)
        except Exception as error:
            link.close()
            if isinstance(error, Refused) and process in self._processes:
                await self._processes[process][1]  # which reports how it ended
            raise
        self._models[name] = link
        link.lost.add_done_callback(lambda _: self._models.pop(name) if self._models.get(name) is link else None)
        return address

    async def _spawn(self, name: str) -> tuple[Link, asyncio.subprocess.Process]:
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
        link = await attach(ours, self._calls, name)
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
        addresses: list[Any] = []

        def listening(at: Any) -> None:
            addresses.append(at)
            if len(addresses) == settings.processes:
                ready(at)

        self._calls |= {"loaded": asyncio.Barrier(settings.processes).wait, "ready": listening}
        if settings.sim is not None and settings.sim.truth is not None:
            TruthLog(settings.sim.truth).close()  # the front ends append to it
        with contextlib.ExitStack() as held:
            encoded = msgspec.json.encode(_shares(settings, held))
            names = [f"front end {i} of {settings.processes}" for i in range(1, settings.processes + 1)]
            made = await asyncio.gather(*map(self._spawn, names))
            self._front_ends = [link for link, _ in made]
            runs = [asyncio.ensure_future(link.call("front_end", encoded)) for link in self._front_ends]
            for run in runs:  # one error is reported; asyncio need not print those of the others
                run.add_done_callback(lambda run: run.cancelled() or run.exception())
            await done_before(stop, asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED))
            failed = _failure(names, runs, stop.is_set())
            # The second signal stops at once.
            for signalled, patience in ((at_once, settings.drain + _GRACE_S), (asyncio.Event(), _GRACE_S)):
                for (_, process), run in zip(made, runs, strict=True):
                    if not run.done():
                        self._stopped.add(process)
                        process.terminate()
                await done_before(signalled, asyncio.wait(runs), patience)
            if error := failed or _failure(names, runs, True):
                raise error

    # --- the end ---

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


# --- a front end's view ----------------------------------------------------------------------------------------------


class Group:
    """The processes of the server. `call` calls the hub, and `handlers` is what the hub calls here."""

    def __init__(self, handlers: Handlers, call: Callable[..., Awaitable[Any]], counter: int | None = None) -> None:
        self.handlers, self._call, self._counter = handlers, call, counter
        self.is_shared = counter is not None
        """Whether there are several front ends."""

    def join(self, models: Models, simulator: Simulator | None) -> None:
        """Take part, with these models."""
        self._models, models.group = models, self
        counted = model_process.counted(models)
        self.handlers |= models.operations | counted
        if simulator is not None:
            page, sim_page = counted["metrics"], simulator.metrics
            self.handlers |= {"freeze": simulator.freeze, "metrics": lambda: page() + sim_page()}

    async def everywhere(self, operation: str, *arguments: Any) -> None:
        """Carry out load, unload, register or unregister in all front ends."""
        await self._call("all", operation, *arguments)

    async def metrics(self) -> bytes:
        return _metrics(await self._call("all", "metrics"))

    async def statistics(self, name: str, version: str) -> Any:
        return _statistics(await self._call("all", "statistics", name, version))

    async def started(self, loading: Awaitable[None]) -> None:
        """Wait until all front ends have loaded their models."""
        await loading
        if self.is_shared:
            await self._call("loaded")

    def number(self) -> int:
        """Return the next request's ordinal, in the whole server."""
        assert self._counter is not None
        return os.lseek(self._counter, 1, os.SEEK_CUR)  # all processes share the file's position, and the kernel counts

    def freeze(self, ns: int) -> None:
        """Freeze the simulators of all front ends."""
        self._freezing = asyncio.ensure_future(self._call("all", "freeze", ns))

    async def model(self, source: ModelSource, config: str, serial: int) -> Model:
        """Return a model that runs in a process of its own, which is started by the first front end that needs it."""
        given = source.name, source.path and str(source.path), config, self._models.device, self._models.overrides
        address = await self._call("start_model", f"{serial} {source.name}", *given)
        return await model_process.bring_up(address, source.name, self._models)


def _metrics(pages: Sequence[bytes]) -> bytes:
    """Return one page in Prometheus' text format, with the sums of all samples."""
    if len(pages) == 1:
        return pages[0]
    families: dict[tuple[str, str], dict[str, list[float]]] = {}
    for family in b"".join(pages).decode().split("# HELP ")[1:]:
        text, kind, *lines = family.splitlines()
        samples = families.setdefault((text, kind), {})
        for sample, _, value in (line.rpartition(" ") for line in lines):
            samples.setdefault(sample, []).append(msgspec.json.decode(value))
    together = ""
    for (text, kind), samples in families.items():
        values = [f"{sample} {_together(sample, values)}\n" for sample, values in samples.items()]
        together += f"# HELP {text}\n{kind}\n{''.join(values)}"
    return together.encode()


def _together(sample: str, values: list[float]) -> float:
    if sample.startswith(_OF_THE_SERVER):
        return values[0]
    return sum(values) / len(values) if sample.startswith(_MEANS) else sum(values)


def _statistics(parts: Sequence[bytes]) -> Any:
    """Return one ModelStatisticsResponse with the sums per model, in the order of their names."""
    models: dict[tuple[str, str], Any] = {}
    for part in parts:
        for model in ModelStatisticsResponse.FromString(part).model_stats:
            _add(models.setdefault((model.name, model.version), ModelStatistics()), model)
    return ModelStatisticsResponse(model_stats=[models[key] for key in sorted(models)])


def _add(total: Any, more: Any) -> None:
    total.SetInParent()
    for field, value in more.ListFields():
        before = getattr(total, field.name)
        if field.name == "batch_stats":
            known = {batch.batch_size: batch for batch in before}
            for batch in value:
                _add(known.get(batch.batch_size) or before.add(), batch)
        elif field.message_type is not None:
            _add(before, value)
        elif field.name in ("name", "version", "batch_size", "last_inference"):
            setattr(total, field.name, max(before, value))
        else:
            setattr(total, field.name, before + value)
