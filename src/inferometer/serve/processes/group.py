"""The processes of the server from the point of view of one front end.

An operation that concerns the whole server goes to all of them, and each carries out its own part. Results are added up.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from inferometer.serve.kserve import control
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.processes import merge, remote
from inferometer.serve.processes.link import Handlers

Call = Callable[..., Awaitable[Any]]


class Group:
    """The processes of the server. `call` calls the hub, and `handlers` is what the hub calls here."""

    def __init__(self, handlers: Handlers, call: Call, counter: int | None = None) -> None:
        self._handlers, self._call, self._counter = handlers, call, counter
        self.is_shared = counter is not None
        """Whether there are several front ends."""

    def join(self, models: Models, page: Callable[[], bytes]) -> None:
        """Take part, with these models and this page of metrics."""
        self._models = models
        self._handlers |= {
            "metrics": page,
            "statistics": lambda *which: control.own_statistics(models, *which).SerializeToString(),
            "load": models.load_here,
            "unload": models.unload_here,
            "register": models.regions.register,
            "unregister": models.regions.unregister,
        }
        models.group = self

    async def everywhere(self, operation: str, *arguments: Any) -> None:
        """Carry out load, unload, register or unregister in all front ends."""
        await self._call("all", operation, *arguments)

    async def metrics(self) -> bytes:
        return merge.metrics(await self._call("all", "metrics"))

    async def statistics(self, name: str, version: str) -> Any:
        return merge.statistics(await self._call("all", "statistics", name, version))

    async def started(self, loading: Awaitable[None]) -> None:
        """Wait until all front ends have loaded their models."""
        await loading
        if self.is_shared:
            await self._call("loaded")

    def number(self) -> int:
        """Return the next request's ordinal, in the whole server."""
        assert self._counter is not None
        return os.lseek(self._counter, 1, os.SEEK_CUR)  # all processes share the file's position, and the kernel counts

    async def model(self, source: ModelSource, config: str, serial: int, device: str, overrides: Any) -> Model:
        """Return a model that runs in a process of its own, which is started by the first front end that needs it."""
        given = [source.name, *(path and str(path) for path in (source.path, source.root))]
        address = await self._call("start_model", f"{serial} {source.name}", given, config, device, overrides)
        return await remote.bring_up(address, source.name, self._models)
