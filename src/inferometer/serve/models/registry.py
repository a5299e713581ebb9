"""All models of the server: loads, finds and unloads them, and submits requests. Used in the event loop's thread only."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import ModelConfig
from inferometer.serve.models import configs, repository
from inferometer.serve.models.model import Model
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.models.shared_memory import Regions
from inferometer.serve.models.types import NEVER, Inference, Refused, reason
from inferometer.serve.offload import Threads, in_thread, run_to_end
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Deadlines

if TYPE_CHECKING:
    from inferometer.serve.processes.hub import Group


class IndexEntry(NamedTuple):
    """One line of the repository index. The state is READY, UNAVAILABLE, LOADING or UNLOADING."""

    name: str
    version: str
    state: str
    reason: str


class Models:
    """All models of the server, by name."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, device: str = "auto", overrides: Sequence[str] = (), limit: int = 10**5
    ) -> None:
        configs.override(ModelConfig(), *overrides)  # raises UserError if they do not fit any configuration
        self.loop, self.device, self.overrides, self._limit = loop, device, overrides, limit
        self.regions, self.deadlines, self.offload = Regions(), Deadlines(loop), Threads(loop)
        self.group: Group | None = None
        """The other processes of the server, if there are any."""
        self.operations: dict[str, Callable[..., Any]] = {"load": self.load, "unload": self.unload}
        self.operations |= {"register": self.regions.register, "unregister": self.regions.unregister}
        """What each process of the server does if it is to be done in all of them."""
        self.in_flight = 0
        self._entries: dict[str, _Entry] = {}
        self._repositories: list[Path] = []
        self._open: set[Model] = set()
        """Models that are not closed: including replaced and unloaded ones with requests in progress."""
        self.ready = self.refuses = self._is_closed = False
        self.refused_from = NEVER
        """If the server `refuses` new requests because it is shutting down, HTTP requests whose headers arrived before
        this time are still accepted."""

    def add(self, source: str) -> None:
        """Add a built-in model's name, a model file, a model folder or a repository."""
        found, root = repository.sources(source)
        for each in found:
            self.add_source(each)
        if root is not None:
            self._repositories.append(root)

    def add_source(self, source: ModelSource) -> None:
        if source.name in self._entries:
            where = source.path or "built into the server"
            raise UserError(f"two models have the name {source.name}; the second one is {where}", "rename one of them")
        self._entries[source.name] = _Entry(source)

    async def start(self, config: str = "") -> None:
        """Load and warm up all models. One that fails is in the index with its reason, unless it is the only one."""
        for entry in self._entries.values():
            try:
                await self._bring_up(entry, config)
            except UserError:
                if len(self._entries) == 1:
                    raise
        self.ready = True

    def names(self) -> list[str]:
        """Names of the models that are ready."""
        return sorted(name for name, entry in self._entries.items() if entry.model is not None)

    def is_known(self, name: str) -> bool:
        """Whether the model is loaded, was loaded, or was to be loaded."""
        return name in self._entries

    def find(self, name: str, version: str = "") -> Model:
        entry = self._entries.get(name)
        if entry is None:
            raise Refused("NOT_FOUND", f"Request for unknown model: '{name}' is not found")
        model = entry.model
        if model is None:
            if entry.state == "LOADING" or entry.is_lost:
                why = f"is not at ready state: {entry.reason or 'it is being loaded'}"
                raise Refused("UNAVAILABLE", f"Request for unknown model: '{name}' {why}")
            raise Refused("NOT_FOUND", f"Request for unknown model: '{name}' has no available versions")
        if version not in ("", model.version):
            raise Refused("NOT_FOUND", f"Request for unknown model: '{name}' version {version} is not found")
        return model

    def is_ready(self, name: str, version: str = "") -> bool:
        try:
            self.find(name, version)
        except Refused:
            return False
        return self.ready

    def index(self, only_ready: bool = False) -> list[IndexEntry]:
        """List all models, including those in a repository that were never loaded."""
        names = [] if only_ready else [name for root in self._repositories for name in repository.listed(root)]
        lines = {name: IndexEntry(name, "", "UNAVAILABLE", "not loaded") for name in names}
        for name, entry in self._entries.items():
            lines[name] = IndexEntry(name, entry.version, entry.state, entry.reason)
        return sorted(line for line in lines.values() if line.state == "READY" or not only_ready)

    def submit(self, inference: Inference, was_let_in: bool = False, model: Model | None = None) -> None:
        """Check and queue the inference. `ended` is called in any case; before this returns if the inference is refused,
        or if the model is quick enough. One that `was_let_in` arrived before new ones were refused. `model` is the
        inference's, if the caller has just found it."""
        try:
            if self.refuses:
                self.check_open(was_let_in)
            if model is None:
                model = self.find(inference.model, inference.version)
            if self.in_flight >= self._limit:
                full = f"Exceeds maximum queue size: the server has {self._limit} requests in progress"
                raise Refused("RESOURCE_EXHAUSTED", full)
            inference.version = model.version
            model.submit(inference)
        except Exception as error:
            inference.end(reason(error))

    def check_open(self, was_let_in: bool = False) -> None:
        """Raise Refused if the server accepts no new requests; once closed, not even one that `was_let_in`."""
        if self._is_closed or (self.refuses and not was_let_in):
            raise Refused("UNAVAILABLE", "the server is shutting down and does not accept new requests")

    def cancel(self, inference: Inference, why: Refused | None = None) -> None:
        """End the inference unless it is over: with CANCELLED, or for another reason."""
        if inference.owner is not None:
            inference.owner.cancel(inference, why)

    def everywhere(self, operation: str, *arguments: object) -> Any:
        """Do one of `operations` in all processes of the server; the result is None, or to be awaited."""
        if self.group is not None:
            return self.group.everywhere(operation, *arguments)
        return self.operations[operation](*arguments)

    def lose(self, model: Model, why: str) -> None:
        """Make a model unavailable because its process has ended."""
        entry = self._entries.get(model.name)
        if entry is not None and entry.model is model:
            entry.model = None
            entry.became("UNAVAILABLE", why, is_lost=True)
            run_to_end(self._retire(model))

    def check_lost(self) -> None:
        """Raise Refused if the process of a model has ended."""
        for name, entry in self._entries.items():
            if entry.is_lost:
                self.find(name)

    async def load(self, name: str, config: str = "", serial: int = 0) -> None:
        """Load the model in this process, with `config` (JSON) instead of its file if given; the old one serves until it
        is ready. `serial` is that of the load request."""
        entry = self._entries.get(name)
        if entry is None:
            root = next((root for root in self._repositories if name in repository.listed(root)), None)
            if root is None:
                raise Refused("INTERNAL", f"failed to load '{name}', failed to poll from model repository")
            entry = self._entries[name] = _Entry(ModelSource(name, root / name))
        try:
            await self._bring_up(entry, config, serial)
        except UserError as error:
            raise Refused("INTERNAL", f"failed to load '{name}', {error}") from None

    async def unload(self, name: str) -> None:
        """Stop accepting requests for the model, and wait for its requests. An unknown model is not an error."""
        if (entry := self._entries.get(name)) is None:
            return
        async with entry.lock:
            model, entry.model = entry.model, None
            if model is not None:
                entry.became("UNLOADING")
                await self._retire(model)
                entry.became("UNAVAILABLE", "unloaded")

    async def _bring_up(self, entry: "_Entry", config: str = "", serial: int = 0) -> None:
        async with entry.lock:
            old = entry.model
            if old is None:
                entry.became("LOADING")
            try:
                definition = await in_thread(repository.define, entry.source, config, self.overrides)
                if old is None:
                    entry.version = definition.version
                if self.group is not None and repository.wants_process(definition, self.group.is_shared):
                    model = await self.group.model(entry.source, config, serial)
                else:
                    model = await repository.bring_up(definition, self)
            except Exception as error:
                name, message = entry.source.name, reason(error).message
                if old is None:
                    entry.became("UNAVAILABLE", message)
                raise (error if isinstance(error, UserError) else UserError(f"cannot load {name}: {message}")) from None
            self._open.add(model)
            entry.model, entry.version = model, model.version
            entry.became("READY")
            if old is not None:
                run_to_end(self._retire(old))

    async def _retire(self, model: Model) -> None:
        await model.drained()
        if model in self._open:
            self._open.discard(model)
            model.close()

    def refuse_new(self) -> None:
        self.ready, self.refuses = False, True
        self.refused_from = min(self.refused_from, now())

    async def close(self) -> None:
        """Refuse everything that is in progress."""
        if self._is_closed:
            return
        self.refuse_new()
        self._is_closed = True
        why = Refused("UNAVAILABLE", "the server stopped before the request was complete")
        while self._open:
            model = self._open.pop()
            model.refuse_all(why)
            model.close()
        self.regions.unregister()
        self.offload.close()
        self.deadlines.close()


class _Entry:
    def __init__(self, source: ModelSource) -> None:
        self.source, self.lock = source, asyncio.Lock()
        self.model: Model | None = None
        self.version = ""
        """That of the model; if it is not loaded, that of the last attempt to load it."""
        self.became("UNAVAILABLE", "not loaded")

    def became(self, state: str, reason: str = "", is_lost: bool = False) -> None:
        self.state, self.reason, self.is_lost = state, reason, is_lost  # lost: its process has ended
