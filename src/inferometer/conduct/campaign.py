"""A comparison of engines: every engine is started, checked, measured at the same levels with the same workload, and stopped.

All of it is in one folder: campaign.json (campaign.py), a log per engine, and a run per engine, level and round. campaign.json is
written after every part, so a campaign that was interrupted can be resumed, and finished parts are not measured again. An engine
that fails takes its reason into the record, and the next one is measured.
"""

import contextlib
import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from inferometer import __version__, conduct, manifest, store, workload
from inferometer.campaign import FILE, Cache, CampaignRecord, DeviceFacts, EngineRecord, LevelRecord, Output, StartUp
from inferometer.conduct.campaign_reading import read_record
from inferometer.conduct.engine_server import opened_server, prompts_of, sample_row, version_of
from inferometer.conduct.pairs import terminable
from inferometer.config.engines import Campaign, EngineSpec, Level, is_in_process, level_config, levels_of, variants
from inferometer.config.schema import Config
from inferometer.config.secret import REMOVED, is_secret, without_password
from inferometer.engines import devices, model_files
from inferometer.engines.catalog import check_spec
from inferometer.engines.launching import EngineError
from inferometer.errors import UserError
from inferometer.observe.gpu import gpu_names
from inferometer.records import Run
from inferometer.store.folder import atomic_file

SAMPLE = "sample.jsonl"
_ANY_URL = "http://127.0.0.1:1"
_SECRET_FLAG = re.compile(r"(\S*(?:key|token|secret|password)\S*?[= ]+)\S+", re.IGNORECASE)
"""A flag or a variable of a command line whose value may be a secret: `--api-key VALUE`, `HF_TOKEN=VALUE`."""
_SCRATCH = ".scratch"
"""Folder of runs that are not part of the campaign: warm-ups, and completions of the sample."""


class Running(Protocol):
    """An engine that is ready: a server, or a library in a process of its own."""

    startup: StartUp
    facts: dict[str, str]
    can_reset: bool
    profiler: tuple[str, str]

    @property
    def log_tail(self) -> tuple[str, ...]: ...
    def config(self, level: Level, salt: str, repeat: int) -> Config: ...
    def measure(self, config: Config, level: Level, show: conduct.Show | None) -> tuple[Run, float | None]: ...
    def complete(self, sample: Path, count: int, tokens: int, folder: Path) -> list[Output]: ...
    def warm_up(self, count: int, most: int, folder: Path) -> None: ...
    def reset_cache(self) -> bool: ...
    def call_profiler(self, hook: str) -> None: ...
    def check_alive(self) -> None: ...


class View(Protocol):
    """Shows how the campaign goes (report/engines_view.py)."""

    def planned(self, names: Sequence[str], levels: Sequence[Sequence[Level]], rounds: int, folder: Path) -> None: ...
    def starting(self, name: str, round: int) -> None: ...
    def ready(self, name: str, startup: StartUp) -> None: ...
    def doing(self, name: str, what: str) -> None: ...
    def measuring(self, name: str, level: Level) -> conduct.Show | None: ...
    def measured(self, name: str, level: Level, run: Run | None, error: str) -> None: ...
    def failed(self, name: str, reason: str, message: str, log_tail: Sequence[str]) -> None: ...
    def stopped(self, name: str) -> None: ...
    def line(self, text: str) -> None: ...
    def over(self) -> None: ...


def run_campaign(campaign: Campaign, view: View, resume: Path | None = None) -> Path:
    """Measure all engines; return the folder. After a Ctrl-C, it returns with what is finished, and the record says so."""
    specs = variants(campaign)
    for spec in specs:
        check_spec(spec, campaign.encoder is not None)
    folder = resume.resolve() if resume is not None else store.new_folder(campaign.output)
    book = _Book(folder, campaign, specs, is_resumed=resume is not None)
    levels = [levels_of(campaign, spec) if campaign.encoder is None else [] for spec in specs]
    view.planned([spec.name for spec in specs], levels, campaign.repeat, folder)
    try:
        with terminable():
            if campaign.encoder is not None:
                _measure_encoders(campaign, specs, book, view)
            else:
                for number in range(campaign.repeat):
                    for spec in specs if number % 2 == 0 else reversed(specs):
                        _measure_engine(campaign, spec, number, book, view)
            book.write(interrupted=False)
    except KeyboardInterrupt:
        book.write(interrupted=True)
    finally:
        view.over()
        shutil.rmtree(folder / _SCRATCH, ignore_errors=True)
    store.point_latest(folder)
    return folder


def _measure_encoders(campaign: Campaign, specs: Sequence[EngineSpec], book: "_Book", view: View) -> None:
    from inferometer.conduct.encoders import measure_encoders  # noqa: PLC0415 - few campaigns need it

    for each in measure_encoders(campaign, specs, book.folder, view.line, book.record.engines, book.replace):
        book.replace(each)


def _measure_engine(campaign: Campaign, spec: EngineSpec, number: int, book: "_Book", view: View) -> None:
    """One engine in one round: what is not finished yet."""
    pending = book.pending(spec, number)
    if not pending:
        return
    view.starting(spec.name, number)
    try:
        for _ in range(campaign.startup.repeat - 1 if not book[spec.name].starts else 0):
            with _opened(campaign, spec, book) as engine:
                book.add_start(spec.name, engine.startup)
        with _opened(campaign, spec, book) as engine:
            book.add_start(spec.name, engine.startup)
            view.ready(spec.name, engine.startup)
            _measure_levels(campaign, spec, number, pending, engine, book, view)
    except EngineError as error:
        book.fail(spec.name, error)
        view.failed(spec.name, error.reason, error.line, error.log_tail)
    view.stopped(spec.name)


def _measure_levels(
    campaign: Campaign,
    spec: EngineSpec,
    number: int,
    pending: Sequence[Level],
    engine: Running,
    book: "_Book",
    view: View,
) -> None:
    scratch = book.folder / _SCRATCH
    book.change(spec.name, facts=engine.facts)
    if campaign.agreement.samples and book.record.sample and not book[spec.name].outputs:
        view.doing(spec.name, "completing the sample")
        outputs = engine.complete(book.folder / SAMPLE, len(book.record.sample), campaign.agreement.tokens, scratch)
        engine.check_alive()
        book.change(spec.name, outputs=tuple(outputs))
    if campaign.warmup:
        view.doing(spec.name, "warming up")
        engine.warm_up(campaign.warmup, max(int(level.value) for level in levels_of(campaign, spec)), scratch)
        engine.check_alive()
    for level in pending:
        _measure_level(spec, level, number, engine, book, view)
    _check_measured(book[spec.name])
    profile = campaign.profile
    if profile is not None and profile.engine == spec.name and number == campaign.repeat - 1:
        _profile(campaign, spec, engine, book, view)
    if number == campaign.repeat - 1:
        book.change(spec.name, status="ok")


def _check_measured(record: EngineRecord) -> None:
    """Raise EngineError when no level could be measured."""
    errors = [level.error for level in record.levels if level.error]
    if errors and not any(level.run for level in record.levels):
        reason = "out of memory" if "out of memory" in errors[0] else "failed"
        raise EngineError(errors[0], "", reason)


def _measure_level(
    spec: EngineSpec,
    level: Level,
    number: int,
    engine: Running,
    book: "_Book",
    view: View,
    hooks: tuple[str, str] = ("", ""),
) -> None:
    """Measure one level and record it, also when it fails."""
    salt = f"{level.name} round {number}{' profiled' if any(hooks) else ''}"
    config = msgspec.structs.replace(engine.config(level, salt, number), output=str(book.folder))
    is_salted = workload.salt_of(config.data) is not None
    cache: Cache = "salted" if is_salted else "reset" if engine.reset_cache() else "shared"
    run, error, padding = None, "", None
    try:
        if hooks[0]:
            engine.call_profiler(hooks[0])
        run, padding = engine.measure(config, level, view.measuring(spec.name, level))
        if hooks[1]:
            engine.call_profiler(hooks[1])
    except EngineError:
        raise
    except UserError as failure:
        error = str(failure)
    if run is not None and run.manifest.outcome.interrupted:
        raise KeyboardInterrupt
    view.measured(spec.name, level, run, error)
    book.add_level(
        spec.name,
        LevelRecord(
            by=level.by,
            level=level.value,
            repeat=number,
            run=run.folder.name if run is not None else "",
            error=error,
            is_profiled=any(hooks),
            padding=padding,
            cache=cache,
        ),
    )
    engine.check_alive()


def _profile(campaign: Campaign, spec: EngineSpec, engine: Running, book: "_Book", view: View) -> None:
    """Measure one level again while the engine's own profiler runs."""
    assert campaign.profile is not None
    hooks = (campaign.profile.start or engine.profiler[0], campaign.profile.stop or engine.profiler[1])
    if not hooks[0]:
        raise UserError(
            f"{spec.name} has no profiler that can be started over its API",
            "give profile.start and profile.stop",
            "profile",
        )
    by = levels_of(campaign, spec)[0].by
    view.doing(spec.name, f"profiling at {campaign.profile.level}")
    _measure_level(spec, Level(by, campaign.profile.level), campaign.repeat - 1, engine, book, view, hooks)


@contextlib.contextmanager
def _opened(campaign: Campaign, spec: EngineSpec, book: "_Book") -> Iterator[Running]:
    """Start the engine. Its first start of the campaign is cold: the model's files are dropped from the page cache."""
    is_cold = not book[spec.name].starts
    dropped = is_cold and model_files.drop_from_page_cache(spec.model or campaign.model)
    log = book.folder / book[spec.name].log
    files = book.folder / log.stem
    files.mkdir(exist_ok=True)
    if is_in_process(spec):
        from inferometer.conduct.engine_library import opened_library  # noqa: PLC0415 - few campaigns need it

        opened: contextlib.AbstractContextManager[Running] = opened_library(
            campaign, spec, log, files, is_cold, dropped
        )
    else:
        if is_cold:
            book.change(spec.name, version=version_of(campaign, spec, files))
        opened = opened_server(campaign, spec, log, files, is_cold, dropped)
    with opened as engine:
        yield engine


# --- the record ------------------------------------------------------------------------------------------------------


class _Book:
    """campaign.json: what is finished, written after every part."""

    def __init__(self, folder: Path, campaign: Campaign, specs: Sequence[EngineSpec], is_resumed: bool) -> None:
        self.folder, self._campaign = folder, campaign
        digest = _digest(campaign)
        if is_resumed:
            self.record = read_record(folder)
            if self.record.digest != digest:
                raise UserError(
                    f"{folder} was measured with another file", "resume it with the same file, or start a new campaign"
                )
            self._forgive()
            return
        engines = tuple(_fresh(spec, number) for number, spec in enumerate(specs, 1))
        rows = _sample(campaign) if campaign.encoder is None else []
        if rows:
            (folder / SAMPLE).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        facts = model_files.model_facts(campaign.model)
        self.record = CampaignRecord(
            inferometer=__version__,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            digest=digest,
            campaign=_redacted(msgspec.to_builtins(campaign, enc_hook=float)),
            model=facts,
            device=_device(campaign, specs, facts.dtype),
            sample=prompts_of(rows),
            engines=engines,
        )
        self._write()

    def __getitem__(self, name: str) -> EngineRecord:
        return next(each for each in self.record.engines if each.name == name)

    def pending(self, spec: EngineSpec, number: int) -> list[Level]:
        """The levels of this round that are not measured; none if the engine has failed."""
        known = self[spec.name]
        if known.status == "failed":
            return []
        done = {(each.by, each.level) for each in known.levels if each.repeat == number and not each.is_profiled}
        return [level for level in levels_of(self._campaign, spec) if (level.by, level.value) not in done]

    def change(self, name: str, **changes: Any) -> None:
        self.replace(msgspec.structs.replace(self[name], **changes))

    def replace(self, record: EngineRecord) -> None:
        engines = tuple(record if each.name == record.name else each for each in self.record.engines)
        self.record = msgspec.structs.replace(self.record, engines=engines)
        self._write()

    def add_start(self, name: str, startup: StartUp) -> None:
        self.change(name, starts=(*self[name].starts, startup))

    def add_level(self, name: str, level: LevelRecord) -> None:
        self.change(name, levels=(*self[name].levels, level))

    def fail(self, name: str, error: EngineError) -> None:
        message = error.line + (f" (next: {error.next_step})" if error.next_step else "")
        self.change(name, status="failed", reason=error.reason, message=message, log_tail=error.log_tail)

    def write(self, interrupted: bool) -> None:
        self.record = msgspec.structs.replace(self.record, interrupted=interrupted)
        self._write()

    def _forgive(self) -> None:
        """A resumed campaign tries engines that failed again."""
        for each in self.record.engines:
            if each.status == "failed":
                levels = tuple(level for level in each.levels if level.run and not level.error)
                self.change(each.name, status="pending", reason="", message="", log_tail=(), levels=levels)

    def _write(self) -> None:
        with atomic_file(self.folder / FILE) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(self.record), indent=1) + b"\n")


def _fresh(spec: EngineSpec, number: int) -> EngineRecord:
    settings = msgspec.to_builtins(spec)
    settings = {name: value for name, value in settings.items() if value not in ("", None, {}, False)}
    settings["env"] = dict.fromkeys(spec.env, REMOVED)
    mode = spec.mode or "serve"
    slug = "".join(letter if letter.isalnum() else "-" for letter in spec.name)[:60]
    return EngineRecord(
        name=spec.name, type=spec.type, mode=mode, settings=_redacted(settings), log=f"{number:02}-{slug}.log"
    )


def _sample(campaign: Campaign) -> list[dict[str, Any]]:
    """The prompts that every engine completes; empty if the workload has no texts."""
    if not campaign.agreement.samples:
        return []
    config = level_config(campaign, Level("concurrency", 1), {"url": _ANY_URL}, "sample", 0)
    if workload.uses_tokenizer(config.data, "server"):
        return []
    requests = workload.build(config.data, config.seed, range(campaign.agreement.samples))
    rows = [sample_row(request, campaign.agreement.tokens) for request in requests]
    return [row for row in rows if row is not None]


def _device(campaign: Campaign, specs: Sequence[EngineSpec], stored: str) -> DeviceFacts:
    """The device that the engines run on: a GPU if there is one and no engine is told to use the CPU, else the processor.

    The peak that counts is that of the engines' data type if all have the same one, else that of the stored weights.
    """
    given = {spec.dtype for spec in specs}
    dtype = (given.pop() or stored) if len(given) == 1 else stored
    names = [] if any(spec.device == "cpu" for spec in specs) else gpu_names()
    name = names[0] if names else str(manifest.host().get("cpu", ""))
    gpus = campaign.cost.get("gpus")
    return devices.device_facts(name, gpus if isinstance(gpus, int) else 1, dtype, campaign.device)


def _digest(campaign: Campaign) -> str:
    """A hash of what is measured: without where it is stored, and what only the report depends on."""
    tree = msgspec.to_builtins(campaign, enc_hook=float)
    for name in ("output", "cost", "slo", "device"):
        del tree[name]
    return hashlib.sha256(msgspec.json.encode(tree, order="sorted")).hexdigest()[:16]


def _redacted(tree: Any, name: str = "") -> Any:
    """The tree without values that could be secrets: of headers and environment variables, of secret keys, in URLs."""
    if isinstance(tree, dict):
        if name in ("headers", "env"):
            return dict.fromkeys(tree, REMOVED)
        return {key: REMOVED if is_secret(key) and value else _redacted(value, key) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_redacted(value) for value in tree]
    if name == "command" and isinstance(tree, str):
        return _SECRET_FLAG.sub(rf"\1{REMOVED}", tree)
    return without_password(tree) if name == "url" and isinstance(tree, str) else tree
