"""The processes of the server from the point of view of one front end.

An operation that concerns the whole server goes to all of them, and each carries out its own part. Results are added up.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from inferometer.serve.kserve import control
from inferometer.serve.kserve.messages import ModelStatisticsResponse
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.processes import model_process
from inferometer.serve.processes.link import Handlers
from inferometer.serve.sim.server import Simulator

Call = Callable[..., Awaitable[Any]]
_OF_THE_SERVER = ("nv_cpu_", "process_start_time_seconds", "inferometer_serve_info")
"""Metrics that are the same for all processes: those of the first one count."""
_MEANS = ("vllm:kv_cache_usage_perc",)


class Group:
    """The processes of the server. `call` calls the hub, and `handlers` is what the hub calls here."""

    def __init__(self, handlers: Handlers, call: Call, counter: int | None = None) -> None:
        self._handlers, self._call, self._counter = handlers, call, counter
        self.is_shared = counter is not None
        """Whether there are several front ends."""

    def join(self, models: Models, page: Callable[[], bytes], simulator: Simulator | None) -> None:
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
        if simulator is not None:
            self._handlers["freeze"] = simulator.freeze
        models.group = self

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

    async def model(self, source: ModelSource, config: str, serial: int, device: str, overrides: Any) -> Model:
        """Return a model that runs in a process of its own, which is started by the first front end that needs it."""
        given = source.name, source.path and str(source.path)
        address = await self._call("start_model", f"{serial} {source.name}", given, config, device, overrides)
        return await model_process.bring_up(address, source.name, self._models)


def _metrics(pages: Sequence[bytes]) -> bytes:
    """Return one page in Prometheus' text format, with the sums of all samples."""
    if len(pages) == 1:
        return pages[0]
    families: dict[str, tuple[dict[str, None], dict[str, list[float]]]] = {}
    for line in [line for page in pages for line in page.decode().splitlines() if line]:
        if line.startswith("#"):
            comments, samples = families.setdefault(line.split(" ", 3)[2], ({}, {}))
            comments[line] = None
        else:
            sample, _, value = line.rpartition(" ")
            samples.setdefault(sample, []).append(float(value) if "." in value or "e" in value else int(value))
    lines = [
        line
        for comments, samples in families.values()
        for line in (*comments, *(f"{sample} {_together(sample, values)}" for sample, values in samples.items()))
    ]
    return ("\n".join(lines) + "\n").encode()


def _together(sample: str, values: list[float]) -> float:
    if sample.startswith(_OF_THE_SERVER):
        return values[0]
    return sum(values) / len(values) if sample.startswith(_MEANS) else sum(values)


def _statistics(parts: Sequence[bytes]) -> Any:
    """Return one ModelStatisticsResponse with the sums per model, in the order of their names."""
    models: dict[tuple[str, str], Any] = {}
    for part in parts:
        for model in ModelStatisticsResponse.FromString(part).model_stats:
            key = (model.name, model.version)
            if key in models:
                _add(models[key], model)
            else:
                models[key] = model
    return ModelStatisticsResponse(model_stats=[models[key] for key in sorted(models)])


def _add(total: Any, more: Any) -> None:
    for field, value in more.ListFields():
        if field.name == "batch_stats":
            known = {batch.batch_size: batch for batch in total.batch_stats}
            for batch in value:
                _add(known.get(batch.batch_size) or total.batch_stats.add(batch_size=batch.batch_size), batch)
        elif field.message_type is not None:
            _add(getattr(total, field.name), value)
        elif field.name == "last_inference":
            total.last_inference = max(total.last_inference, value)
        elif field.name not in ("name", "version", "batch_size"):
            setattr(total, field.name, getattr(total, field.name) + value)
