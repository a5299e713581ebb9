"""The search for a server's capacity with real probes: one short run each, watched while it runs, all in one folder."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import numpy as np

from inferometer import records, store
from inferometer.analysis.slo import SloResult
from inferometer.analysis.slo_expression import Slo, parse_all
from inferometer.analysis.summary import Summary
from inferometer.apis import APIS
from inferometer.capacity.result import By, Capacity, Probe
from inferometer.capacity.search import Bracket, Goal, Request, Trial, bracket, following
from inferometer.capacity.sequential import Look, Sequential, is_counted, telling_length
from inferometer.conduct.measuring import measure
from inferometer.config.fields import Seconds
from inferometer.config.loads import Closed, Poisson
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.records import MISSING, ROW, TIMES, Run, Snapshot, StagePlan

_START = {"text": 4.0, "other": 0.5}
"""The first level, as a number of requests in flight: language models serve several at a time, most tensor models one."""
_OVERHEAD = 1.5
"""Seconds for starting the client and storing the records of a probe."""
_UNLOADED = 0.5
"""Seconds of a request if the first probe could not find it out."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    by: By = "rate"
    budget: float = 120.0
    percentile: str = "p90"
    think: float = 20.0
    start: float | None = None
    precision: float = 0.05


class View(Protocol):
    """Shows how the search goes (report/capacity.py)."""

    def planned(self, goal: Goal, objectives: Sequence[Slo], unloaded: float) -> None: ...

    def probing(self, request: Request, trials: Sequence[Trial]) -> None: ...

    def progress(self, snapshot: Snapshot, look: Look | None) -> None: ...

    def probed(self, probe: Probe, found: Bracket) -> None: ...

    def over(self) -> None: ...


def find(config: Config, options: Options, view: View) -> Capacity:
    """Search for the capacity. Ctrl-C ends the search with what was found so far, if a probe is complete."""
    presets = tuple(text for text in config.slos if text.strip().isidentifier())
    objectives = parse_all(config.slos, percentile=options.percentile)
    if not objectives:
        raise UserError(
            "there is no objective to hold", "give --slo, such as --slo chat or --slo 'ttft.p90 < 1s'", "slo"
        )
    started = time.monotonic()
    folder = store.new_folder(config.output)
    config = msgspec.structs.replace(
        config,
        output=str(folder),
        slo=[str(one) for one in objectives],
        client=msgspec.structs.replace(config.client, grace=Seconds(0.1)),
    )
    prober = _Prober(config, options, objectives, view)
    try:
        was_interrupted = prober.search()
    finally:
        with contextlib.suppress(OSError):  # it is not empty: something was measured
            folder.rmdir()
    if not prober.probes:
        raise KeyboardInterrupt
    found = bracket(prober.trials)
    last = prober.last
    assert last is not None
    batch = last.manifest.config.get("data")
    return Capacity(
        by=options.by,
        bracket=found,
        limited_by=_limit(prober.probes, found),
        probes=tuple(prober.probes),
        slos=tuple(config.slos),
        presets=presets,
        percentile=options.percentile if presets else None,
        budget=options.budget,
        seconds=time.monotonic() - started,
        think=options.think,
        url=config.server.urls[0],
        model=str(_section(last, "server").get("model", "")),
        has_text=APIS[config.server.api].response == "text",
        batch=_whole(batch.get("batch")) if isinstance(batch, dict) else None,
        interrupted=was_interrupted,
        folder=str(folder),
    )


def _section(run: Run, name: str) -> dict[str, object]:
    section = run.manifest.config.get(name)
    return section if isinstance(section, dict) else {}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _limit(probes: Sequence[Probe], found: Bracket) -> str | None:
    """What fails at the upper end: of several objectives that fail there, the one with the most violations."""
    failing = [one for one in probes if one.level == found.high and one.status == "fails"]
    if not failing or not failing[-1].slos:
        return None
    slos = failing[-1].slos
    worst = next((one for one in slos if one.status == "missed"), slos[0])
    return worst.expression.split("<")[0].split(">")[0].strip()


class _Prober:
    """Makes the probes of one search."""

    def __init__(self, config: Config, options: Options, objectives: Sequence[Slo], view: View) -> None:
        self._config, self._options, self._objectives, self._view = config, options, objectives, view
        self._unloaded = _UNLOADED
        self._known: records.Probe | None = None
        self.trials: list[Trial] = []
        self.probes: list[Probe] = []
        self.last: Run | None = None

    def search(self) -> bool:
        """Probe until the search is over; return whether it was interrupted."""
        try:
            started = time.monotonic()
            self._first_request()
            goal = self._goal(time.monotonic() - started)
            self._view.planned(goal, self._objectives, self._unloaded)
            while (request := following(goal, self.trials)) is not None:
                self._view.probing(request, self.trials)
                if not self._probe(request, goal):
                    return True
                self._view.probed(self.probes[-1], bracket(self.trials))
        except KeyboardInterrupt:
            return True
        finally:
            self._view.over()
        return False

    def _first_request(self) -> None:
        """Find out how long a request takes without load, by the first requests that any run sends."""
        run, _ = measure(
            msgspec.structs.replace(self._config, load=Closed(concurrency=1, requests=1), output=self._config.output)
        )
        self.last, self._known = run, run.manifest.probe
        if self._known.failure:
            raise UserError(
                f"the server does not respond as it should: {self._known.failure}", "try `inferometer infer`"
            )
        done = run.records.rows["done"] - run.records.rows["sent"]
        self._unloaded = self._known.e2e or (float(done.max()) / 1e9 if len(done) else _UNLOADED)
        if self._known.is_cut and len(done):
            self._unloaded = float(done.max()) / 1e9

    def _goal(self, spent: float) -> Goal:
        options = self._options
        users = {"rate": 1 / self._unloaded, "concurrency": 1.0, "users": 1 + options.think / self._unloaded}
        is_text = APIS[self._config.server.api].response == "text"
        start = options.start or _START["text" if is_text else "other"] * users[options.by]
        return Goal(
            start=max(start, 1.0) if options.by != "rate" else start,
            budget=options.budget - spent,
            precision=options.precision,
            shortest=max(2.0, 4 * self._unloaded),
            telling=telling_length(self._objectives, options.budget, self._unloaded),
            overhead=_OVERHEAD + self._unloaded,
            whole=options.by != "rate",
        )

    def _probe(self, request: Request, goal: Goal) -> bool:
        """Make one probe; return False if the user interrupted it."""
        started = time.monotonic()
        load = self._load(request)
        config = msgspec.structs.replace(self._config, load=load, seed=self._config.seed + len(self.trials) + 1)
        watch = _Watch(self._test(request, goal), request.seconds, self._view)
        run, summary = measure(config, None, None, watch, self._known)
        self.last = run
        if run.manifest.outcome.interrupted and not watch.has_stopped:
            return False
        found = watch.test.judge_all(run.records.rows, run.records.failures, _others(self._objectives, summary))
        trial = watch.test.trial(request, found, time.monotonic() - started)
        self.trials.append(trial)
        self.probes.append(_record(trial, found, summary, trial.completed is not None, run.folder))
        return True

    def _load(self, request: Request) -> Poisson | Closed:
        duration = Seconds(request.seconds)
        if self._options.by == "rate":
            return Poisson(rate=request.level, duration=duration)
        think = self._options.think if self._options.by == "users" else 0.0
        return Closed(concurrency=int(request.level), duration=duration, think=Seconds(think))

    def _test(self, request: Request, goal: Goal) -> Sequential:
        cycle = self._unloaded + (self._options.think if self._options.by == "users" else 0.0)
        is_open = self._options.by == "rate"
        plan = StagePlan(
            type="poisson" if is_open else "closed",
            open=is_open,
            rate=request.level if is_open else 0.0,
            duration=request.seconds,
            concurrency=0 if is_open else int(request.level),
        )
        return Sequential(
            plan,
            self._objectives,
            request.seconds,
            telling=goal.telling,
            level=request.level if is_open else request.level / cycle,
            unloaded=self._unloaded,
            purpose=request.purpose,
        )


class _Watch:
    """Looks at a probe while it runs, and ends it when a look decides or when the responses take too long."""

    def __init__(self, test: Sequential, longest: float, view: View) -> None:
        self.test, self._longest, self._view = test, longest, view
        self._rows: list[np.ndarray[tuple[int], np.dtype[np.void]]] = []
        self._last: Look | None = None
        self._ended_at: float | None = None
        self.has_stopped = False

    def __call__(self, snapshot: Snapshot) -> Literal["", "end", "stop"]:
        self._view.progress(snapshot, self._last)
        if not snapshot.started or snapshot.stopping:
            return ""
        self._rows.append(_since_start(snapshot))
        if self._ended_at is None and snapshot.elapsed >= self._longest:
            self._ended_at = self._longest
        if self._ended_at is not None:
            self.has_stopped = snapshot.elapsed >= self._ended_at + self.test.patience
            return "stop" if self.has_stopped else ""
        if self.test.is_due(snapshot.elapsed) and self._decides(snapshot):
            self._ended_at = snapshot.elapsed
            return "end"
        return ""

    def _decides(self, snapshot: Snapshot) -> bool:
        rows = np.concatenate(self._rows)
        self._rows = [rows]
        if not (rows["turn"] > 0).any():  # sessions: the ids of later turns do not tell which requests are in flight
            self._last = self.test.look(rows, snapshot.sent + snapshot.queued, snapshot.elapsed)
        return self.test.decision is not None


def _since_start(snapshot: Snapshot) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """The rows that are new, with times since t=0."""
    rows = snapshot.rows().copy()
    for name in TIMES:
        rows[name] = np.where(rows[name] == MISSING, MISSING, rows[name] - snapshot.t0)
    return rows.astype(ROW, copy=False)


def _others(objectives: Sequence[Slo], summary: Summary) -> list[SloResult]:
    """The results for objectives that are not judged by counting: means, rates, and gaps between chunks."""
    names = {str(one) for one in objectives if not is_counted(one)}
    return [result for result in summary.slos if result.slo in names]


def _record(trial: Trial, found: Look, summary: Summary, overloaded: bool, folder: Path) -> Probe:
    return Probe(
        level=trial.level,
        purpose=trial.purpose,
        status=trial.status,
        seconds=trial.seconds,
        requests=found.requests,
        throughput=summary.throughput.requests,
        mean_e2e=found.mean_e2e,
        slos=found.results,
        overloaded=overloaded,
        folder=folder.name,
    )
