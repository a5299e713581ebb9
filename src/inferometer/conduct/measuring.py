"""One run, from its config to its folder."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, cast

import msgspec

from inferometer import __version__, manifest, schedule, store, workload
from inferometer.analysis.abort_expression import parse_limits
from inferometer.analysis.slo_expression import parse_all
from inferometer.analysis.summary import Summary
from inferometer.apis import APIS
from inferometer.conduct import fleets
from inferometer.conduct.context import check_context
from inferometer.conduct.early_ends import EarlyEnds, Ends
from inferometer.conduct.fleets import OpenFleet
from inferometer.conduct.interrupts import stop_on_ctrl_c
from inferometer.conduct.observers import (
    live_url,
    observers_of,
    spool_series,
    warnings_at_start,
    with_observations,
)
from inferometer.conduct.parts import check_part, folder_stem, part_record, tag_of
from inferometer.conduct.saving import DRAFT, SPOOL, NotUploadedError, discard_if_empty, from_spool, save
from inferometer.conduct.uploading import finish, mark, prepare
from inferometer.config.check import check_streams
from inferometer.config.data import Images, Mix, Tensors
from inferometer.config.schema import Config
from inferometer.config.secret import hidden, observe_words, words
from inferometer.errors import UserError
from inferometer.fleet.lost import add_lost_rows
from inferometer.fleet.supervisor import Supervisor
from inferometer.observe.observer import Observers
from inferometer.observe.settling import Settling
from inferometer.prepare.choice import portions, prepared_count
from inferometer.prepare.jobs import prepared_jobs, provide_tokenizer
from inferometer.prepare.plans import check_load, division_unit, longest_sequence, part_plan, shard_plans, whole_plan
from inferometer.prepare.setup import Part, Setup
from inferometer.printable import hide
from inferometer.probe import estimate, reach
from inferometer.probe.connect import Unreachable
from inferometer.probe.refusal import EveryRequestFailsError
from inferometer.probe.shared_memory import Portion
from inferometer.records import Manifest, Outcome, Probe, Run, Snapshot, StagePlan
from inferometer.report.live import Outline, Show
from inferometer.store import draft as drafts
from inferometer.store.draft import Draft
from inferometer.store.folder import disk_errors
from inferometer.store.upload import Upload
from inferometer.tensors import Tensor
from inferometer.timing.clock import wall_offset
from inferometer.types import Plan, Request
from inferometer.wire.context import SharedRefs
from inferometer.workload import image_tensors, images, tensors, tokenizer

_STREAMED = ("ttft", "ttft_service", "ttft_content", "tpot")
"""Latencies that only streamed responses have."""
_SHOW_EVERY_S = 0.25
"""How often the progress of the preparation is shown."""


Watch = Callable[[Snapshot], Literal["", "end", "stop"]]
"""Called with each snapshot of a run of one stage, which it may end early: `end` sends nothing more and waits for the responses in
flight; `stop` waits for at most `client.grace`. A second `stop` does not wait."""


def measure(
    config: Config,
    show: Show | None = None,
    watch: Watch | None = None,
    probe: Probe | None = None,
    ends: Ends | None = None,
    must_reach: bool = True,
    part: Part | None = None,
    start_ns: int = 0,
) -> tuple[Run, Summary]:
    """Measure a server, and show nothing unless there is a `show`. Raises UnsavedError when the records cannot be stored.

    If the output is a bucket, it must be writable before the first request is sent; the run is measured into a local folder, and
    uploaded at the end. NotUploadedError, which is an UnsavedError, is raised when the upload fails.

    `watch` may end the run early. `probe` is what a probe of the same server and workload showed; by default, there is a probe before
    the run.
    `ends` judges requests as they end, and may end the run or a stage as the limits of `abort.on` do. Without `must_reach`, a server that
    cannot be reached before the run is measured all the same, if `server.model` is set; otherwise, it raises UserError.
    `part` is the part of the run to measure, of several that are merged later (merging.py). `start_ns` is the wall clock at t=0.
    """
    _check_objectives(config)
    check_part(config, part)
    config, upload = prepare(config)
    run, summary = _measure_to_folder(config, upload, show, watch, probe, ends, must_reach, part, start_ns)
    if upload is not None:
        try:
            finish(run.folder, show.uploading if show else None)
        except UserError as error:
            raise NotUploadedError(error, run, summary) from None
    return run, summary


def measure_to_end(config: Config) -> tuple[Run, Summary]:
    """Measure what is of no use in part. Raises KeyboardInterrupt when the user interrupted the run."""
    run, summary = measure(config)
    if run.manifest.outcome.interrupted:
        raise KeyboardInterrupt
    return run, summary


def _measure_to_folder(
    config: Config,
    upload: Upload | None,
    show: Show | None,
    watch: Watch | None,
    probe: Probe | None,
    ends: Ends | None,
    must_reach: bool,
    part: Part | None,
    start_ns: int,
) -> tuple[Run, Summary]:
    """Measure into a folder on this machine, which may belong to a bucket."""
    config = msgspec.structs.replace(config, data=workload.pinned(config.data, config.seed))
    needs_server = workload.uses_tokenizer(config.data, tokenizer.SERVER)
    if not needs_server:
        _check_data(config)
    check_load(config)
    fleets.check_fleet(config)
    config, reached = _reached(config, must_reach, show)
    tag = tag_of(part, start_ns, config.seed)
    provide_tokenizer(config, reached)
    if needs_server:  # filters by length and sessions count tokens
        _check_data(config)
    config = completed(config, reached)
    probe = probe or probed(config, reached, secrets.token_hex(4), show, must_reach)
    turns = workload.mean_turns(config.data, config.seed) if workload.has_sessions(config.data) else 0.0
    whole = whole_plan(config, probe.e2e_ns, turns)
    check_context(config, reached, schedule.total_requests(whole))
    plan = part_plan(config, whole, part)
    with contextlib.ExitStack() as held:
        secret_words = words(config.server, reached.secrets, config.data)
        fleet = held.enter_context(fleets.opened(config, plan, probe, secret_words))
        shards = fleet.shards
        probe = msgspec.structs.replace(probe, processes_because=fleet.because)
        with hidden(secret_words):
            own = partial(portions, config, plan, shards, probe.e2e_ns, part)
            shared = held.enter_context(_shared(config, reached, own))
        folder = store.new_folder(config.output, folder_stem(part, start_ns, tag))
        mark(folder, upload)
        names = tuple(stage.name for stage in manifest.stage_plans(config, plan, turns, part.of if part else 1))
        stored_at = f"{upload.url}/{folder.name}" if upload is not None else ""
        setup = Setup(
            config, reached, shards, folder / SPOOL, tag, shared, probe, turns, names, part, start_ns, stored_at
        )
        try:
            return _measure(setup, plan, folder, show, fleet, watch, ends, held)
        except FileNotFoundError:
            if setup.spool.exists():
                raise
            raise UserError(f"{folder}: the folder was deleted while the run was in progress", "run again") from None


def _reached(config: Config, must_reach: bool, show: Show | None) -> tuple[Config, reach.Reached]:
    """Reach the server. If it need not be reached, and is not, no connection is opened and no request is sent before the run."""
    try:
        reached = reach.reach(config.server)
        return msgspec.structs.replace(config, server=reach.suited(config.server, reached)), reached
    except Unreachable as error:
        if must_reach or not config.server.model:
            raise
        if show:
            show.warn(f"{error.what}: the requests are sent all the same")
        client = msgspec.structs.replace(config.client, connections=0, probe=False)
        return msgspec.structs.replace(config, client=client), reach.assume(config.server)


def probed(config: Config, reached: reach.Reached, tag: str, show: Show | None = None, refuse: bool = True) -> Probe:
    """Send a few requests of the workload, to know what the start of the run needs (probe/estimate.py)."""
    if not config.client.probe:
        return Probe(skipped="client.probe is false")
    if longest_sequence(config):
        return Probe(skipped="a sequence would change the state of the model")
    requests = workload.probe_requests(config.data, config.seed, estimate.REQUESTS, f"probe {tag}")
    if show:
        show.probing()
    try:
        with _shared(config, reached, lambda: [_portion(requests)]) as refs:
            return estimate.estimate(config, reached, requests, f"{tag}-probe", *refs, may_refuse=refuse)
    except EveryRequestFailsError:
        raise
    except UserError as error:  # the shared memory could not be set up: the run reports it
        return Probe(failure=hide(error.what, words(config.server, reached.secrets, config.data)))
    finally:
        if show:
            show.over()


def _portion(requests: list[Request]) -> Portion:
    return Portion(cast("list[tuple[Tensor, ...]]", [request.payload for request in requests]), 1)


def _measure(
    setup: Setup,
    plan: Plan,
    folder: Path,
    show: Show | None,
    fleet: OpenFleet,
    watch: Watch | None,
    ends: Ends | None,
    held: contextlib.ExitStack,
) -> tuple[Run, Summary]:
    config, reached, shards = setup.config, setup.reached, setup.shards
    view = show or Show()
    secrets = words(config.server, reached.secrets, config.data) + observe_words(config)
    try:
        draft = _draft(setup, plan, fleet)
        with disk_errors(folder):
            setup.spool.mkdir()
            draft_file = held.enter_context(drafts.begin(setup.spool / DRAFT, draft))
        observers = observers_of(setup)
        watching = held.enter_context(Observers(observers))
        view.planned(_outline(setup, plan, live_url(observers)))
        watching.start()
        for line in (*fleet.notes, *warnings_at_start(setup, observers, secrets)):
            view.warn(line)
        files = held.enter_context(contextlib.ExitStack())
        with stop_on_ctrl_c(_interrupt):
            jobs = files.enter_context(prepared_jobs(setup, plan, _preparing(view)))
        supervisor = Supervisor(
            jobs,
            fleet.starter(setup.stored_at),
            plan,
            unit=division_unit(config),
            start_in=fleet.start_in,
            begin=watching.begin,
        )
        settling = _settling(setup, draft.manifest.plan)
        early = EarlyEnds(setup, plan, draft.manifest.plan, view.warn, ends)
        interval = 0.05 if settling else 0.25 if show or watch or observers or early.is_needed else 1.0
        with stop_on_ctrl_c(supervisor.stop):
            for snapshot in supervisor.watch(interval):
                if settling and (stable := settling.look(supervisor.lost)) is not None:
                    supervisor.end_stage(stable)
                if watch and (ending := watch(snapshot)):
                    supervisor.end_stage(0) if ending == "end" else supervisor.stop()
                early.look(snapshot, supervisor)
                watching.mark(snapshot.stage)
                view.progress(msgspec.structs.replace(snapshot, observed=watching.now()))
            files.close()  # the records need the space
            with stop_on_ctrl_c(watching.stop_waiting):
                observed = watching.end(waiting=view.waiting)
    except BaseException:
        discard_if_empty(folder, shards)
        raise
    finally:
        view.over()
    if not supervisor.t0:
        discard_if_empty(folder, shards)
        if supervisor.interrupted and not supervisor.errors:
            raise KeyboardInterrupt
        raise UserError("; ".join(supervisor.errors) or "the run ended before it started", "nothing was sent")
    ended_early = range(len(plan.stages)) if supervisor.interrupted else supervisor.ended_early
    for lost in supervisor.lost:
        own = shard_plans(config, plan, shards)[lost]
        granted = supervisor.dealing.granted(lost)
        add_lost_rows(
            setup.spool, lost, own, ended_early, granted, partial(workload.classes_of, config.data, config.seed)
        )
    finished = _finished(draft.manifest, supervisor, early, fleet)
    finished = with_observations(finished, observers, watching, secrets)
    spool_series(setup.spool, observed, supervisor.t0, secrets)
    drafts.end(draft_file, Draft(finished, shards))
    return save(folder, from_spool(folder, finished, shards))


def _interrupt() -> None:
    """Handle Ctrl-C while requests are prepared."""
    raise KeyboardInterrupt


def _preparing(view: Show) -> Callable[[int, int], None]:
    """Return what shows how many requests are prepared."""
    shown = -_SHOW_EVERY_S

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - shown < _SHOW_EVERY_S:
            return
        shown = time.monotonic()
        view.progress(Snapshot(started=False, prepared=done / total))

    return progress


def _outline(setup: Setup, plan: Plan, metrics_url: str) -> Outline:
    return Outline(
        urls=tuple(target.url for target in setup.reached.targets),
        model=setup.reached.model,
        load=setup.config.load,
        total=schedule.total_requests(plan, setup.turns),
        duration=schedule.planned_duration(plan),
        stage_durations=tuple(stage.duration for stage in plan.stages),
        rate_at=partial(schedule.rate_at, whole=plan, parts=setup.part.of if setup.part else 1),
        processes=setup.shards,
        spool=setup.spool,
        turns=setup.turns,
        metrics_url=metrics_url,
    )


def _check_objectives(config: Config) -> None:
    """Parse the objectives and limits: an error in one must not show only after the run, or during it."""
    parse_all(config.slos)
    for limit in parse_limits(config.abort.limits):
        if limit.metric in _STREAMED and not config.server.stream:
            raise UserError(
                f"{str(limit)!r} cannot end the run: responses that are not streamed have no {limit.metric}",
                "use e2e, or leave it out",
                "abort.on",
            )
    if isinstance(config.data, Mix):
        for number, class_ in enumerate(config.data.classes):
            parse_all(class_.slos, f"data.classes.{number}.slo")


def _check_data(config: Config) -> None:
    """Check that the data fits the API and the sessions' context. This may count tokens."""
    workload.check(config.data, APIS[config.server.api])
    _check_sessions(config)


def _check_sessions(config: Config) -> None:
    """Check that the API takes conversations, and that the first prompts fit into the context."""
    if not workload.has_sessions(config.data):
        return
    if not APIS[config.server.api].history:
        kind = config.data.__struct_config__.tag
        apis = " or ".join(name for name, row in APIS.items() if row.history)
        raise UserError(
            f"{kind} has conversations of several turns, but {config.server.api} requests cannot contain earlier turns",
            f"use {{server.api={apis}}}, or data without conversations"
            + (": set data.turns to first" if hasattr(config.data, "turns") and hasattr(config.data, "path") else ""),
            key="data.path" if hasattr(config.data, "path") else "data.type",
        )
    context = config.sessions.context
    for request in workload.sample(config.data, config.seed) if context else ():
        if request.n_in + request.n_out > context:
            raise UserError(
                f"the first prompt of session {request.id} has {request.n_in:,} tokens and requests {request.n_out:,} more, "
                f"which is more than the context of {context:,} tokens",
                "use shorter prompts or responses, or raise it: only earlier turns can be dropped",
                key="sessions.context",
            )


def completed(config: Config, reached: reach.Reached) -> Config:
    """Complete the config with what the API does, and with what the server reports about its model."""
    data = workload.completed(config.data, APIS[config.server.api].has_chat_template)
    config = msgspec.structs.replace(config, data=data)
    if isinstance(config.data, Mix):
        classes = [
            msgspec.structs.replace(
                class_, data=completed(msgspec.structs.replace(config, data=class_.data), reached).data
            )
            for class_ in config.data.classes
        ]
        if any(isinstance(class_.data, Tensors) and class_.data.sequence for class_ in classes):
            raise UserError(
                f"{reached.targets[0].url}: the model {reached.model} keeps sequences, which traffic classes cannot have",
                "measure each class in a run of its own",
                key="data",
            )
        return msgspec.structs.replace(config, data=Mix(classes))
    if not isinstance(config.data, Tensors | Images):
        return config
    if isinstance(config.data, Tensors):
        config = _sequenced(config, reached)
    config = msgspec.structs.replace(config, data=_completed_data(config, reached))
    check_streams(config, longest_sequence(config))
    return config


def _completed_data(config: Config, reached: reach.Reached) -> Tensors | Images:
    facts, data = reached.facts, config.data
    assert facts is not None and isinstance(data, Tensors | Images)
    in_grpc_message = reached.targets[0].grpc and not config.server.shared_memory
    as_json = APIS[config.server.api].has_json_tensors
    if isinstance(data, Tensors):
        metadata = facts.metadata
        return tensors.complete(data, metadata.inputs, facts.max_batch, in_grpc_message, as_json, metadata.outputs)
    formats = image_tensors.formats(facts.config.raw if facts.config is not None else {})
    return images.complete(data, facts.metadata.inputs, facts.max_batch, formats, in_grpc_message, as_json)


def _sequenced(config: Config, reached: reach.Reached) -> Config:
    """Take the sequences from the streams of the data file, if the model keeps sequences and data.sequence is not set."""
    assert isinstance(config.data, Tensors) and reached.facts is not None
    known = reached.facts.config
    if known is None or not known.sequence_batching or config.data.sequence:
        return config
    if not tensors.has_streams(config.data):
        raise UserError(
            f"{reached.targets[0].url}: the model {reached.model} keeps sequences: it needs a correlation id",
            "set it to the number of requests per sequence",
            key="data.sequence",
        )
    data = msgspec.structs.replace(config.data, sequence="streams")
    return msgspec.structs.replace(config, data=data)


def _settling(setup: Setup, plans: tuple[StagePlan, ...]) -> Settling | None:
    """Make what ends stages as soon as they are stable."""
    return Settling(setup.spool, setup.shards, plans) if any(plan.stable for plan in plans) else None


def _shared(
    config: Config, reached: reach.Reached, portions: Callable[[], Iterable[Portion]]
) -> contextlib.AbstractContextManager[tuple[SharedRefs, ...]]:
    """Put what is sent into shared memory, if the config says so."""
    if not config.server.shared_memory:
        return contextlib.nullcontext(())
    from inferometer.probe import shared_memory  # noqa: PLC0415 - few runs need it

    assert reached.facts is not None
    served = shared_memory.Served(*reach.peers_of(config.server, reached), config.server, reached.model, reached.facts)
    return shared_memory.shared(served, portions())


def _draft(setup: Setup, plan: Plan, fleet: OpenFleet) -> Draft:
    config, reached, shards = setup.config, setup.reached, setup.shards
    salt = workload.salt_of(workload.salted(config.data, setup.tag))
    return Draft(
        Manifest(
            inferometer=__version__,
            started="",
            t0_wall_ns=0,
            config=manifest.redacted(config, reached.model),
            plan=manifest.stage_plans(config, plan, setup.turns, setup.part.of if setup.part else 1),
            workload={
                "digest": workload.digest(config.data, config.seed),
                "distinct": prepared_count(config, plan, shards, setup.probe),
            }
            | ({"salt": salt} if salt else {})
            | workload.notes(config.data),
            probe=setup.probe,
            clock={"source": manifest.clock_source(), "stamps": "unknown"},
            seeds={"seed": config.seed},
            versions=manifest.versions(),
            host=manifest.host()
            | {"processes": shards, "has_server": manifest.is_here(reached.addresses)}
            | ({"nodes": fleet.nodes} if fleet.nodes else {}),
            server=manifest.server(config, reached.facts),
            part=part_record(setup),
        ),
        shards,
    )


def _finished(head: Manifest, supervisor: Supervisor, early: EarlyEnds, fleet: OpenFleet) -> Manifest:
    wall = supervisor.t0 + wall_offset()
    report = supervisor.reports[0] if supervisor.reports else None
    errors = tuple(supervisor.errors) + (
        ("the disk filled up: recording stopped there",) if supervisor.disk_full else ()
    )
    given_up = {stage for report in supervisor.reports for stage in report.given_up}
    notes = dict.fromkeys((*fleet.notes, *(note for report in supervisor.reports for note in report.notes)))
    return msgspec.structs.replace(
        head,
        started=datetime.fromtimestamp(wall / 1e9, UTC).isoformat(timespec="milliseconds"),
        t0_wall_ns=wall,
        clock=head.clock
        | (
            {"stamps": report.stamps, "timer": report.timer, "loop": report.loop, "awake": report.awake}
            if report
            else {}
        )
        | fleet.clock(),
        outcome=early.outcome(
            Outcome(errors=errors, given_up=tuple(sorted(given_up)), notes=tuple(notes)), supervisor.stop_level
        ),
    )
