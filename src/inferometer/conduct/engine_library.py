"""An engine of a comparison that is used as a library, while it runs: loaded in a process of its own, measured, and ended."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from inferometer import conduct, workload
from inferometer.apis import APIS
from inferometer.campaign import Output, StartUp
from inferometer.conduct.library_run import measure_library
from inferometer.config.engines import Campaign, EngineSpec, Level, level_config, levels_of
from inferometer.config.loads import stages_of
from inferometer.config.schema import Config
from inferometer.engines.inprocess.library import Library, start_library
from inferometer.engines.inprocess.messages import Progress
from inferometer.engines.launching import EngineError
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.types import Request

_NO_URL = "http://127.0.0.1:1"
"""Stands for the URL that an engine without a server does not have."""
_PROFILE = ("start", "stop")


class RunningLibrary:
    """The engine, ready to be measured."""

    profiler = _PROFILE

    def __init__(self, campaign: Campaign, spec: EngineSpec, library: Library, startup: StartUp) -> None:
        self._campaign, self._spec, self._library = campaign, spec, library
        self.startup = startup
        self.facts = library.facts
        self.version = library.versions.get(spec.type, "")

    @property
    def log_tail(self) -> tuple[str, ...]:
        return self._library.log_tail()

    def config(self, level: Level, salt: str, repeat: int) -> Config:
        """The config of one level; the batch size is the concurrency of its closed loop."""
        server = {"url": _NO_URL, "model": self._spec.model or self._campaign.model} | self._spec.server
        return level_config(self._campaign, level, server, salt, repeat)

    def measure(self, config: Config, level: Level, show: conduct.Show | None) -> tuple[Run, float | None]:
        """Measure one level. The second result is the share of padding in static batches.

        Raises UserError when the level cannot be measured but the engine survives, and EngineError when it does not.
        """
        on_progress = getattr(show, "done", None)
        total = next(stage.requests for stage in stages_of(config.load))

        def note(progress: Progress) -> None:
            if on_progress is not None:
                on_progress(progress.completed + progress.failed, total)

        try:
            run, _, generated = measure_library(config, self._library, on_progress=note)
        except EngineError as error:
            if self._library.is_running:
                raise UserError(error.what, error.remedy) from None
            raise
        return run, generated.padding

    def complete(self, sample: Path, count: int, tokens: int, folder: Path) -> list[Output]:
        """Complete the prompts of the sample greedily."""
        rows = [msgspec.json.decode(line) for line in sample.read_bytes().splitlines()]
        requests = [
            Request(id, row["prompt"] if "prompt" in row else row["messages"], 0, tokens) for id, row in enumerate(rows)
        ]
        return self._library.complete(requests[:count], tokens, chat=self._has_template())

    def warm_up(self, count: int, most: int, folder: Path) -> None:
        """Generate with every batch size that will be measured: the first batch of a size is slower than the others."""
        config = self.config(Level("batch", 1), "warm-up", 0)
        for level in levels_of(self._campaign, self._spec):
            size = max(count, int(level.value))
            requests = workload.probe_requests(config.data, config.seed, size, f"warm-up {level.name}")
            short = [msgspec.structs.replace(request, n_out=min(request.n_out, 8)) for request in requests]
            with contextlib.suppress(EngineError):  # the level itself says what is wrong with this size
                self._library.generate(short, int(level.value), count=size, chat=self._has_template())

    def reset_cache(self) -> bool:
        return False

    def call_profiler(self, hook: str) -> None:
        """Start or stop the profiler of the engine's process; the trace is stored beside its log."""
        if hook == _PROFILE[0]:
            self._library.start_profile()
        else:
            self._library.stop_profile(self._library.folder / "trace.json")

    def check_alive(self) -> None:
        """Raise EngineError when the engine has died."""
        if not self._library.is_running:
            raise EngineError(f"{self._spec.name} died", "see its log", "died", self.log_tail)

    def _has_template(self) -> bool:
        return APIS[self.config(Level("batch", 1), "template", 0).server.api].has_chat_template


@contextlib.contextmanager
def opened_library(
    campaign: Campaign, spec: EngineSpec, log: Path, files: Path, is_cold: bool, dropped: bool
) -> Iterator[RunningLibrary]:
    """Load the engine's model and generate a first token; end its process after the block."""
    most = max(int(level.value) for level in levels_of(campaign, spec))
    patience = float(campaign.startup.timeout)
    library = start_library(spec, spec.model or campaign.model, log, files, patience, max_batch=most)
    try:
        blank = StartUp(is_cold=is_cold, dropped_cache=dropped, phases=library.phases, ready=library.ready_at)
        engine = RunningLibrary(campaign, spec, library, blank)
        engine.startup = msgspec.structs.replace(blank, first_token=_first_token(engine, library, patience))
        yield engine
    finally:
        library.close()


def _first_token(engine: RunningLibrary, library: Library, patience: float) -> float:
    """When the first token of the first request came; its end, if the engine does not report that. In seconds since the start."""
    config = engine.config(Level("batch", 1), "first", 0)
    requests = workload.probe_requests(config.data, config.seed, 1, "first response")
    row = library.generate(requests, 1, count=1, timeout=patience).rows[0]
    if row.failure:
        raise EngineError(
            f"the first request failed: {row.message or row.failure}",
            "see its log",
            "no good response",
            library.log_tail(),
        )
    came = row.first if row.first is not None else row.done
    return (came - library.started_ns) / 1e9 if came is not None else time.monotonic() - library.started_ns / 1e9
