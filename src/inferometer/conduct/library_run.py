"""One level of an engine without a server, as an ordinary run: the same records, statistics, objectives and reports.

There is no client and no network: the engine's own process notes the times. So the run has no samples of a client, its stamps are
the engine's (`clock.stamps: engine`), and checks about a network client do not apply (analysis/settings.is_in_process).
"""

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from inferometer import __version__, manifest, store, workload
from inferometer.analysis import window
from inferometer.analysis.slo_expression import parse_all
from inferometer.analysis.summary import Summary
from inferometer.apis import APIS
from inferometer.conduct.observers import resource_observers
from inferometer.conduct.saving import save
from inferometer.config.loads import Closed, stages_of
from inferometer.config.observe import Observe
from inferometer.config.schema import Config, Measure
from inferometer.engines.inprocess.library import Library
from inferometer.engines.inprocess.messages import Generated, Progress, Row
from inferometer.errors import UserError
from inferometer.observe.observer import Observers
from inferometer.prepare.plans import whole_plan
from inferometer.records import (
    COUNTED_BY,
    MISSING,
    ROW,
    Chunks,
    Columns,
    Failure,
    Manifest,
    Outcome,
    Probe,
    Records,
    Run,
    StagePlan,
    class_names,
)
from inferometer.series import TimeSeries
from inferometer.timing.clock import wall_offset
from inferometer.types import Request

_DISTINCT = 1024
"""Different requests that are made for a level that ends by time, since it is not known how many it will take."""
_MOST_TOKENS = 65_535
"""Tokens that one chunk can have in chunks.parquet."""


def measure_library(
    config: Config,
    library: Library,
    *,
    warmup: int = 0,
    timeout: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[Run, Summary, Generated]:
    """Run a closed level on an engine and store it as a run. `config.load.concurrency` is the batch size.

    Before it, `warmup` requests of the same kind but with other prompts are made, which are not recorded. If the engine compiles, that
    is at least one batch: compiling must not be part of a latency. Raises EngineError when the engine cannot do it.
    """
    parse_all(config.slos)
    config = _completed(config)
    load = _closed(config)
    requests = level_requests(config, load.requests)
    level, chat = load.concurrency, APIS[config.server.api].has_chat_template
    first = max(warmup, level if library.spec.compile else 0)
    if first:
        others = workload.probe_requests(config.data, config.seed, first, f"warm-up {secrets.token_hex(4)}")
        library.generate(others, level, count=first, chat=chat, timeout=timeout)
    with Observers(resource_observers(_watching(config.observe, library.pid))) as watching:
        watching.start()
        generated = library.generate(
            requests,
            level,
            count=load.requests,
            duration=float(load.duration),
            chat=chat,
            timeout=timeout,
            on_progress=on_progress,
        )
        series = watching.end()
    head = _manifest(config, library, generated)
    head = msgspec.structs.replace(head, observer_errors=watching.errors, observer_cpu=watching.cpu_seconds)
    folder = store.new_folder(config.output)
    return *save(folder, as_run(folder, head, generated, series)), generated


def level_requests(config: Config, count: int) -> list[Request]:
    """The requests of a level, the same as those that a server would get."""
    return workload.build(config.data, config.seed, range(count or _DISTINCT))


def _completed(config: Config) -> Config:
    data = workload.pinned(config.data, config.seed)
    data = workload.completed(data, APIS[config.server.api].has_chat_template)
    return msgspec.structs.replace(config, data=workload.salted(data, secrets.token_hex(4)))


def _closed(config: Config) -> Closed:
    stages = stages_of(config.load)
    if len(stages) != 1 or not isinstance(stages[0], Closed):
        raise UserError("an engine without a server is measured in a closed loop", "use load.concurrency", "load")
    load = stages[0]
    if not load.requests and not load.duration:
        raise UserError("the level has no end", "set load.requests or load.duration", "load")
    return load


def _watching(observe: Observe, pid: int) -> Observe:
    return msgspec.structs.replace(observe, processes=[*observe.processes, pid])


def _manifest(config: Config, library: Library, generated: Generated) -> Manifest:
    spec, wall = library.spec, generated.began + wall_offset()
    salt = workload.salt_of(config.data)
    tree = manifest.redacted(config, spec.model or config.server.model or "")
    server = tree["server"]
    assert isinstance(server, dict)
    is_streamed = any(row.first is not None for row in generated.rows)
    tree["server"] = server | {"url": [f"{spec.name or spec.type} (in-process)"], "stream": is_streamed}
    return Manifest(
        inferometer=__version__,
        started=datetime.fromtimestamp(wall / 1e9, UTC).isoformat(timespec="milliseconds"),
        t0_wall_ns=wall,
        config=tree,
        plan=_plan(config),
        workload={"digest": workload.digest(config.data, config.seed), "distinct": generated.distinct}
        | ({"salt": salt} if salt else {})
        | workload.notes(config.data),
        probe=Probe(skipped="the engine has no server"),
        clock={"source": manifest.clock_source(), "stamps": "engine"},
        seeds={"seed": config.seed},
        versions=manifest.versions() | library.versions,
        host=manifest.host() | {"processes": 1, "has_server": True},
        server={
            "name": spec.type,
            "version": library.versions.get(spec.type, ""),
            "mode": spec.mode,
            "in_process": True,
            "padding": generated.padding,
        }
        | library.facts,
        outcome=Outcome(notes=generated.notes),
    )


def _plan(config: Config) -> tuple[StagePlan, ...]:
    """All requests of the first batch start at once: there is no ramp-up."""
    plans = manifest.stage_plans(config, whole_plan(config))
    return tuple(msgspec.structs.replace(plan, ramp_up=0.0) for plan in plans)


def as_run(folder: Path, head: Manifest, generated: Generated, series: Sequence[TimeSeries] = ()) -> Run:
    """The rows of an engine as the records of a run, with times since the start of the level."""
    failures = tuple(dict.fromkeys(Failure(row.failure, row.message) for row in generated.rows if row.failure))
    rows = _columns(generated.rows, generated.began, failures)
    measure = msgspec.convert(head.config["measure"], Measure, dec_hook=lambda kind, value: kind(value))
    phase = window.mark(rows, measure, head.plan)
    records = Records(rows, phase, failures, (), class_names(head))
    arrivals = [each - generated.began for row in generated.rows for each in row.arrivals]
    tokens = [min(each, _MOST_TOKENS) for row in generated.rows for each in row.tokens]
    chunks = Chunks(np.array(arrivals, np.int64), np.array(tokens, np.uint16))
    moved = tuple(msgspec.structs.replace(each, at=each.at - generated.began) for each in series)
    return Run(folder, head, records, len(arrivals), lambda: iter((chunks,)), lambda: moved)


def _columns(rows: Sequence[Row], began: int, failures: tuple[Failure, ...]) -> Columns:
    made = np.zeros(len(rows), ROW)
    for name in (
        "read_delay",
        "queue",
        "compute",
        "server_total",
        "rtt",
        "session",
        "turn",
        "turns",
        "class",
        "replica",
    ):
        made[name] = -1
    made["reasoning"] = -1
    made["attempts"] = 1
    numbers = {failure: index for index, failure in enumerate(failures, 1)}
    start = 0
    for target, row in zip(made, rows, strict=True):
        target["id"] = row.id
        for name, at in _times(row).items():
            target[name] = MISSING if at is None else at - began
        target["chunk_start"], target["chunk_count"] = start, len(row.arrivals)
        start += len(row.arrivals)
        target["n_in"], target["n_out"], target["n_want"] = row.n_in, row.n_out, row.n_want
        target["cached"] = row.cached
        target["first_tokens"], target["streamed_tokens"] = _streamed(row)
        target["counted_by"] = COUNTED_BY.index("server" if row.n_out >= 0 else "nobody")
        target["in_counted_by"] = COUNTED_BY.index("server" if row.n_in >= 0 else "nobody")
        target["failure"] = numbers[Failure(row.failure, row.message)] if row.failure else 0
    return Columns.of(made)


def _times(row: Row) -> dict[str, int | None]:
    return {
        "intended": row.sent,
        "sent": row.sent,
        "first_byte": row.first,
        "first_token": row.first,
        "first_content": row.first,
        "last_token": row.last,
        "done": row.done,
    }


def _streamed(row: Row) -> tuple[int, int]:
    """Tokens of the first chunk and of all. An engine may say when the first and the last token came, and nothing in between."""
    if row.tokens:
        return row.tokens[0], sum(row.tokens)
    return (1, row.n_out) if row.first is not None else (-1, -1)
