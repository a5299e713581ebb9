"""All models of the server: loads, finds and unloads them, and submits requests. Used in the event loop's thread only."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inferometer.errors import UserError
from inferometer.serve.models import configs, repository
from inferometer.serve.models.model import Model
from inferometer.serve.models.queue import Alarms
from inferometer.serve.models.repository import ModelSource
from inferometer.serve.models.shared_memory import Regions
from inferometer.serve.models.types import NEVER, Inference, Refused, sendable
from inferometer.serve.offload import Offload, in_thread
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.processes.hub import Group


class IndexEntry(NamedTuple):
    """One line of the repository index."""

    name: str
    version: str
    state: str
    """READY, UNAVAILABLE, LOADING or UNLOADING."""
    reason: str


class Models:
    """All models of the server, by name."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        device: str = "auto",
        overrides: tuple[str, ...] = (),
        limit: int = 10**5,
    ) -> None:
        self.loop, self.device, self.overrides, self._limit = loop, device, overrides, limit
        configs.check_overrides(overrides)
        self.regions, self.alarms = Regions(), Alarms(loop)
        self.offload = Offload(loop)
        """For all front ends and models."""
        self.group: Group | None = None
        """The other processes of the server, if there are any."""
        self.operations: dict[str, Callable[..., Any]] = {
            "load": partial(self._completed, self._load),
            "unload": partial(self._completed, self._unload),
            "register": self.regions.register,
            "unregister": self.regions.unregister,
        }
        """What each process of the server does if it is to be done in all of them."""
        self.in_flight = 0
        self._entries: dict[str, _Entry] = {}
        self._repositories: list[Path] = []
        self._retired: set[Model] = set()
        """Replaced or unloaded models with requests in progress."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that load, unload and retire models."""
        self._is_started = self._is_leaving = self._is_closed = False
        self.refuses = False
        """Whether the server accepts no new requests, because it is shutting down."""
        self.refused_from = NEVER
        """HTTP requests whose headers arrived before this time are still accepted."""

    def add(self, source: str) -> None:
        """Add a built-in model's name, a model file, a model folder or a repository."""
        found, root = repository.sources(source)
        for each in found:
            self.add_source(each)
        if root is not None:
            self._repositories.append(root)

    def add_source(self, source: ModelSource) -> None:
        name, where = source.name, source.path or "built into the server"
        if name != sendable(name):
            raise UserError(f"the name of {where} is not valid UTF-8, so no client could request it", "rename it")
        if name in self._entries:
            raise UserError(f"two models have the name {name}; the second one is {where}", "rename one of them")
        self._entries[name] = _Entry(source)

    async def start(self, config: str = "") -> None:
        """Load and warm up all models. One that fails is in the index with its reason, unless it is the only one."""
        for entry in self._entries.values():
            try:
                await self._bring_up(entry, config)
            except UserError:
                if len(self._entries) == 1:
                    raise
        self._is_started = True

    # --- what there is ---

    @property
    def ready(self) -> bool:
        return self._is_started and not self._is_leaving

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
                why = f"version {entry.version or 1} is not at ready state: {entry.reason or 'it is being loaded'}"
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
        return not self._is_leaving

    def index(self, only_ready: bool = False) -> list[IndexEntry]:
        """List all models, including those in a repository that were never loaded."""
        entries = {name: IndexEntry(name, one.version, one.state, one.reason) for name, one in self._entries.items()}
        if only_ready:
            return sorted(entry for entry in entries.values() if entry.state == "READY")
        for name in [name for root in self._repositories for name in repository.listed(root)]:
            entries.setdefault(name, IndexEntry(name, "", "UNAVAILABLE", "not loaded"))
        return sorted(entries.values())

    # --- requests ---

    def submit(self, inference: Inference, was_let_in: bool = False, model: Model | None = None) -> None:
        """Check and queue the inference, or raise Refused without calling `ended`. A model that is quick enough calls
        `responded` and `ended` before this returns. One that `was_let_in` arrived before new ones were refused. `model`
        is the inference's, if the caller has just found it."""
        if self.refuses:
            self.check_open(was_let_in)
        if model is None:
            model = self.find(inference.model, inference.version)
        if self.in_flight >= self._limit:
            self.check_room()
        inference.version = model.version
        self.in_flight += 1
        try:
            model.submit(inference)
        except BaseException:
            if inference.place is None and not inference.is_over:  # nothing holds it that would end it
                self.over()
            raise

    def enter(self, inference: Inference) -> Model:
        """Count a request that an endpoint passes to the model's `text` itself, or raise Refused; see Model.left."""
        self.check_open()
        self.check_room()
        model = self.find(inference.model)
        inference.version = model.version
        self.in_flight += 1
        model.enter(inference)
        return model

    def check_open(self, was_let_in: bool = False) -> None:
        """Raise Refused if the server accepts no new requests; once closed, not even one that `was_let_in`."""
        if self._is_closed or (self.refuses and not was_let_in):
            raise Refused("UNAVAILABLE", "the server is shutting down and does not accept new requests")

    def check_room(self, others: int = 0) -> None:
        """Raise Refused if the server has its maximum of requests, counting `others` that are not submitted yet."""
        if self.in_flight + others >= self._limit:
            full = f"Exceeds maximum queue size: the server has {self._limit} requests in progress"
            raise Refused("RESOURCE_EXHAUSTED", full)

    def cancel(self, inference: Inference) -> None:
        """End the inference with CANCELLED unless it is over."""
        if not inference.is_over and inference.place is not None:
            inference.place.owner.cancel(inference)

    def over(self) -> None:
        """Note that a request has ended."""
        self.in_flight -= 1

    # --- loading and unloading ---

    async def load(self, name: str, config: str = "") -> None:
        """Load the model, with `config` (JSON) instead of its file if given; the old one serves until it is ready."""
        await self._everywhere("load", name, config)

    async def unload(self, name: str) -> None:
        """Stop accepting requests for the model, and wait for its requests. An unknown model is not an error."""
        await self._everywhere("unload", name)

    async def _everywhere(self, operation: str, *arguments: str) -> None:
        do = self.operations[operation] if self.group is None else partial(self.group.everywhere, operation)
        await do(*arguments)

    def lose(self, model: Model, why: str) -> None:
        """Make a model unavailable because its process has ended."""
        entry = self._entries.get(model.name)
        if entry is not None and entry.model is model:
            entry.model = None
            entry.became("UNAVAILABLE", why, is_lost=True)
            self._task(self._retire(model))

    def check_lost(self) -> None:
        """Raise Refused if the process of a model has ended."""
        for name, entry in self._entries.items():
            if entry.is_lost:
                self.find(name)

    async def _completed(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Run work to its end, even if the caller goes away."""
        await asyncio.shield(self._task(work(*arguments)))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._tasks.add(task := self.loop.create_task(work))
        task.add_done_callback(self._tasks.discard)
        # Mark the exception as retrieved: the caller got it if it is still there, and asyncio need not print it.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return task

    async def _load(self, name: str, config: str, serial: int = 0) -> None:
        """Load the model in this process; `serial` is that of the load request."""
        entry = self._entries.get(name)
        if entry is None:
            roots = self._repositories if repository.is_name(name) else []
            root = next((root for root in roots if name in repository.listed(root)), None)
            if root is None:
                raise Refused("INTERNAL", f"failed to load '{name}', failed to poll from model repository")
            entry = self._entries[name] = _Entry(ModelSource(name, root / name))
        async with entry.lock:
            try:
                await self._bring_up(entry, config, serial)
            except UserError as error:
                raise Refused("INTERNAL", f"failed to load '{name}', {error}") from None

    async def _unload(self, name: str) -> None:
        if (entry := self._entries.get(name)) is None:
            return
        async with entry.lock:
            model, entry.model = entry.model, None
            if model is not None:
                entry.became("UNLOADING")
                await self._retire(model)
                entry.became("UNAVAILABLE", "unloaded")

    async def _bring_up(self, entry: "_Entry", config: str = "", serial: int = 0) -> None:
        if entry.model is None:
            entry.became("LOADING")
        version = entry.version
        try:
            definition = await in_thread(repository.define, entry.source, config)
            version = definition.version
            for text in self.overrides if definition.loader is None else ():
                configs.override(definition.config, text)
            if self.group is not None and repository.wants_process(definition, self.group.is_shared):
                model = await self.group.model(entry.source, config, serial)
            else:
                model = await repository.bring_up(definition, self)
        except Exception as error:
            if entry.model is None:
                entry.version = version
                entry.became("UNAVAILABLE", sendable(" ".join(str(error).split())))
            is_ours = isinstance(error, UserError)
            raise (error if is_ours else UserError(f"cannot load {entry.source.name}: {error}")) from None
        old, entry.model, entry.version = entry.model, model, model.version
        entry.became("READY")
        if old is not None:
            self._task(self._retire(old))

    async def _retire(self, model: Model) -> None:
        self._retired.add(model)
        await model.drained()
        if model in self._retired:
            self._retired.discard(model)
            model.close()

    # --- the end ---

    def say_not_ready(self) -> None:
        """Report not ready from now on; requests are still accepted from clients that have not noticed."""
        self._is_leaving = True

    def refuse_new(self) -> None:
        self._is_leaving = self.refuses = True
        self.refused_from = min(self.refused_from, now())

    async def close(self) -> None:
        """Refuse everything that is in progress."""
        if self._is_closed:
            return
        self._is_closed = self._is_leaving = self.refuses = True
        why = Refused("UNAVAILABLE", "the server stopped before the request was complete")
        models = [entry.model for entry in self._entries.values() if entry.model is not None]
        for model in [*models, *self._retired]:
            model.refuse_all(why)
            model.close()
        self._retired.clear()
        self.regions.unregister()
        self.offload.close()
        self.alarms.close()


class _Entry:
    def __init__(self, source: ModelSource) -> None:
        self.source, self.lock = source, asyncio.Lock()
        self.model: Model | None = None
        self.version = ""
        self.became("UNAVAILABLE", "not loaded")

    def became(self, state: str, reason: str = "", is_lost: bool = False) -> None:
        self.state, self.reason, self.is_lost = state, reason, is_lost  # lost: its process has ended
