"""A comparison of engines: every engine is started, checked, measured at the same levels with the same workload, and stopped.

All of it is in one folder: campaign.json (campaign.py), a log per engine, and a run per engine, level and round. campaign.json is
written after every part, so a campaign that was interrupted can be resumed, and finished parts are not measured again. An engine
that fails takes its reason into the record, and the next one is measured.
"""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inferometer import store, workload
from inferometer.campaign import Cache, EngineRecord, LevelRecord
from inferometer.conduct import encoders
from inferometer.conduct.campaign_book import SAMPLE, CampaignBook
from inferometer.conduct.engine_server import opened_server, version_of
from inferometer.conduct.interrupts import terminable
from inferometer.config.engines import Campaign, EngineSpec, Level, is_in_process, levels_of, variants
from inferometer.engines import model_files
from inferometer.engines.catalog import check_spec
from inferometer.engines.launching import EngineError
from inferometer.errors import UserError

if TYPE_CHECKING:
    from inferometer.conduct.engine_library import RunningLibrary
    from inferometer.conduct.engine_server import RunningServer
    from inferometer.report.engines_view import CampaignView

    Running = RunningServer | RunningLibrary
    """An engine that is ready."""

_SCRATCH = ".scratch"
"""Folder of runs that are not part of the campaign: warm-ups, and completions of the sample."""


def run_campaign(campaign: Campaign, view: "CampaignView", resume: Path | None = None) -> Path:
    """Measure all engines; return the folder. After a Ctrl-C, it returns with what is finished, and the record says so."""
    specs = variants(campaign)
    for spec in specs:
        check_spec(spec, campaign.encoder is not None)
    folder = resume.resolve() if resume is not None else store.new_folder(campaign.output)
    book = CampaignBook(folder, campaign, specs, is_resumed=resume is not None)
    levels = [levels_of(campaign, spec) if campaign.encoder is None else [] for spec in specs]
    view.planned([spec.name for spec in specs], levels, campaign.repeat, folder)
    try:
        with terminable():
            for number in range(campaign.repeat):
                for spec in specs if number % 2 == 0 else reversed(specs):
                    _measure_engine(campaign, spec, number, book, view)
            if campaign.encoder is not None:
                for each in encoders.compared(book.record.engines, folder):
                    book.replace(each)
            book.write(interrupted=False)
    except KeyboardInterrupt:
        book.write(interrupted=True)
    finally:
        view.over()
        shutil.rmtree(folder / _SCRATCH, ignore_errors=True)
    store.point_latest(folder)
    return folder


def _measure_engine(
    campaign: Campaign, spec: EngineSpec, number: int, book: CampaignBook, view: "CampaignView"
) -> None:
    """One engine in one round: what is not finished yet."""
    encoder = campaign.encoder
    sizes = encoders.pending_sizes(encoder, book[spec.name], number) if encoder is not None else []
    levels = book.pending(spec, number) if encoder is None else []
    if not (sizes or levels):
        return
    view.starting(spec.name, number)
    try:
        if sizes:
            encoders.measure_encoder(campaign, spec, number, sizes, book, view)
        else:
            _measure_server(campaign, spec, number, levels, book, view)
    except EngineError as error:
        book.fail(spec.name, error)
        view.failed(spec.name, error.reason, error.line, error.log_tail)
    view.stopped(spec.name)


def _measure_server(
    campaign: Campaign,
    spec: EngineSpec,
    number: int,
    pending: Sequence[Level],
    book: CampaignBook,
    view: "CampaignView",
) -> None:
    """Start an engine, more often than once if the campaign asks for that, and measure the levels."""
    for _ in range(campaign.startup.repeat - 1 if not book[spec.name].starts else 0):
        with _opened(campaign, spec, book) as engine:
            book.add_start(spec.name, engine.startup)
    with _opened(campaign, spec, book) as engine:
        book.add_start(spec.name, engine.startup)
        view.ready(spec.name, engine.startup)
        _measure_levels(campaign, spec, number, pending, engine, book, view)


def _measure_levels(
    campaign: Campaign,
    spec: EngineSpec,
    number: int,
    pending: Sequence[Level],
    engine: "Running",
    book: CampaignBook,
    view: "CampaignView",
) -> None:
    scratch = book.folder / _SCRATCH
    book.change(spec.name, facts=engine.facts, version=engine.version or book[spec.name].version)
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
    engine: "Running",
    book: CampaignBook,
    view: "CampaignView",
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


def _profile(campaign: Campaign, spec: EngineSpec, engine: "Running", book: CampaignBook, view: "CampaignView") -> None:
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
def _opened(campaign: Campaign, spec: EngineSpec, book: CampaignBook) -> "Iterator[Running]":
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
