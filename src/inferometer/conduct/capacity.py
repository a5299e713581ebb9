"""The search for a server's capacity with real probes: one short run each, watched while it runs, all in one folder."""

import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from inferometer import records, store, workload
from inferometer.analysis.slo import SloResult
from inferometer.analysis.slo_expression import Slo, parse_all
from inferometer.analysis.slo_presets import PRESETS
from inferometer.analysis.summary import Summary
from inferometer.apis import APIS
from inferometer.capacity_search.result import By, Capacity, Probe
from inferometer.capacity_search.search import Bracket, Goal, Request, Trial, bracket, following
from inferometer.capacity_search.sequential import ClassObjectives, Look, Sequential, is_counted, judge, telling_length
from inferometer.conduct.capacity_probe import Watch, record
from inferometer.conduct.measuring import measure
from inferometer.conduct.uploading import discard_if_unused, mark, prepare
from inferometer.config.data.mix import Mix
from inferometer.config.fields import RampUp, Seconds
from inferometer.config.loads import Closed, Poisson
from inferometer.config.schema import Config
from inferometer.config.secret import without_password
from inferometer.errors import UserError
from inferometer.records import Manifest, Run, Snapshot, StagePlan

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
    at_least: float | None = None
    """The level that must hold: where the search starts, unless `start` is given."""


class View(Protocol):
    """Shows how the search goes (report/capacity_view.py)."""

    def planned(self, goal: Goal, objectives: Sequence[Slo], names: Sequence[str], unloaded: float) -> None: ...

    def probing(self, request: Request, trials: Sequence[Trial]) -> None: ...

    def progress(self, snapshot: Snapshot, look: Look | None) -> None: ...

    def probed(self, probe: Probe, found: Bracket) -> None: ...

    def over(self) -> None: ...


def with_objectives(config: Config) -> Config:
    """The config with the default objectives, if it has none: the preset chat, and inference for tensor servers."""
    if config.slos or any(_class_slos(config)):
        return config
    preset = "chat" if APIS[config.server.api].response == "text" else "inference"
    return msgspec.structs.replace(config, slo=[preset])


def find(config: Config, options: Options, view: View) -> tuple[Capacity, Manifest]:
    """Search for the capacity; return it and the manifest of the last probe.

    Ctrl-C ends the search with what was found so far, if a probe is complete. So does a server that no longer responds.
    """
    presets = tuple(text.strip() for text in config.slos if text.strip() in PRESETS)
    has_presets = bool(presets) or any(text.strip() in PRESETS for text in _class_slos(config))
    objectives = parse_all(config.slos, percentile=options.percentile)
    config, classes = _with_class_objectives(config, options.percentile)
    required = _Objectives(objectives, classes)
    if not required.every:
        raise UserError(
            "there is no objective to hold", "give --slo, such as --slo chat or --slo 'ttft.p90 < 1s'", "slo"
        )
    started = time.monotonic()
    config, upload = prepare(config)
    folder = store.new_folder(config.output)
    mark(folder, upload)
    config = msgspec.structs.replace(
        config,
        output=str(folder),
        slo=[str(one) for one in objectives],
        client=msgspec.structs.replace(config.client, grace=Seconds(0.1)),
    )
    prober = _Prober(config, options, required, view)
    try:
        was_interrupted = prober.search()
    finally:
        discard_if_unused(folder)
    if not prober.probes:
        raise KeyboardInterrupt
    store.point_latest(folder)
    found = bracket(prober.trials)
    last = prober.last
    assert last is not None
    batch = last.manifest.config.get("data")
    capacity = Capacity(
        by=options.by,
        bracket=found,
        limited_by=_limit(prober.probes, found),
        probes=tuple(prober.probes),
        slos=tuple(required.names),
        presets=presets,
        percentile=options.percentile if has_presets else None,
        budget=options.budget,
        seconds=time.monotonic() - started,
        think=options.think,
        url=without_password(config.server.urls[0]),
        model=str(_section(last, "server").get("model", "")),
        has_text=APIS[config.server.api].response == "text",
        batch=_whole(batch.get("batch")) if isinstance(batch, dict) else None,
        interrupted=was_interrupted,
        folder=str(folder),
        at_least=options.at_least,
        ended_by=prober.ended_by,
        has_sessions=workload.has_sessions(config.data),
    )
    return capacity, last.manifest


def _class_slos(config: Config) -> list[str]:
    classes = config.data.classes if isinstance(config.data, Mix) else []
    return [text for class_ in classes for text in class_.slos]


def _with_class_objectives(config: Config, percentile: str) -> tuple[Config, tuple[ClassObjectives, ...]]:
    """The objectives of the traffic classes, and the config with them instead of presets."""
    data = config.data
    if not isinstance(data, Mix):
        return config, ()
    parsed = [parse_all(each.slos, f"data.classes.{n}.slo", percentile) for n, each in enumerate(data.classes)]
    classes = [
        msgspec.structs.replace(each, slo=[str(one) for one in own])
        for each, own in zip(data.classes, parsed, strict=True)
    ]
    objectives = tuple(
        ClassObjectives(index, each.name, own)
        for index, (each, own) in enumerate(zip(classes, parsed, strict=True))
        if own
    )
    return msgspec.structs.replace(config, data=msgspec.structs.replace(data, classes=classes)), objectives


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
    return worst.slo.split("<")[0].split(">")[0].strip()


class _Objectives(msgspec.Struct, frozen=True):
    """What must hold: for all requests, and for those of each traffic class."""

    common: tuple[Slo, ...]
    classes: tuple[ClassObjectives, ...]

    @property
    def every(self) -> list[Slo]:
        return [*self.common, *(one for each in self.classes for one in each.objectives)]

    @property
    def names(self) -> list[str]:
        """What results call them."""
        return [*map(str, self.common), *(f"{each.name}: {one}" for each in self.classes for one in each.objectives)]


class _Prober:
    """Makes the probes of one search."""

    def __init__(self, config: Config, options: Options, objectives: _Objectives, view: View) -> None:
        self._config, self._options, self._objectives, self._view = config, options, objectives, view
        self._started = time.monotonic()
        self._unloaded = _UNLOADED
        self._known: records.Probe | None = None
        self.trials: list[Trial] = []
        self.probes: list[Probe] = []
        self.last: Run | None = None
        self.ended_by = ""

    def search(self) -> bool:
        """Probe until the search is over; return whether it was interrupted."""
        try:
            self._first_request()
            goal = self._goal(time.monotonic() - self._started)
            self._view.planned(goal, self._objectives.every, self._objectives.names, self._unloaded)
            while (request := following(goal, self.trials)) is not None:
                self._view.probing(request, self.trials)
                if not self._probe(request, goal):
                    return True
                self._view.probed(self.probes[-1], bracket(self.trials))
        except KeyboardInterrupt:
            return True
        except UserError as error:  # such as a server that the load has brought down
            if not self.probes:
                raise
            self.ended_by = error.line
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
        start = options.start or options.at_least or _START["text" if is_text else "other"] * users[options.by]
        return Goal(
            start=max(start, 1.0) if options.by != "rate" else start,
            budget=options.budget - spent,
            precision=options.precision,
            shortest=max(2.0, 4 * self._unloaded),
            telling=telling_length(self._objectives.every, options.budget, self._unloaded),
            overhead=_OVERHEAD + self._unloaded,
            whole=options.by != "rate",
        )

    def _probe(self, request: Request, goal: Goal) -> bool:
        """Make one probe; return False if the user interrupted it."""
        started = time.monotonic()
        load = self._load(request)
        config = msgspec.structs.replace(self._config, load=load, seed=self._config.seed + len(self.trials) + 1)
        watch = Watch(self._test(request, goal), request.seconds, self._view.progress)
        run, summary = measure(config, None, watch, self._known)
        self.last = run
        if run.manifest.outcome.interrupted and not watch.has_stopped:
            return False
        found = watch.test.judge_all(run.records.rows, run.records.failures, self._others(summary))
        trial = watch.test.trial(request, found, time.monotonic() - started)
        self.trials.append(trial)
        probe = record(trial, found, summary, trial.completed is not None, run)
        self.probes.append(msgspec.structs.replace(probe, at=started - self._started, violations=self._violations(run)))
        return True

    def _violations(self, run: Run) -> dict[str, float]:
        """The share of requests that violate each objective, whether or not the server was overloaded."""
        own, rows, failures = self._objectives, run.records.rows, run.records.failures
        closed = StagePlan(type="closed", open=False)  # a closed loop cannot be overloaded
        results = judge(rows, closed, own.common, failures=failures, classes=own.classes).results
        return {result.slo: result.violations for result in results if result.violations is not None}

    def _others(self, summary: Summary) -> list[SloResult]:
        """The results for objectives that are not judged by counting: means, rates, and gaps between chunks."""
        pairs = zip(self._objectives.names, self._objectives.every, strict=True)
        names = {name for name, one in pairs if not is_counted(one)}
        return [result for result in summary.slos if result.slo in names]

    def _load(self, request: Request) -> Poisson | Closed:
        duration = Seconds(request.seconds)
        if self._options.by == "rate":
            return Poisson(rate=request.level, duration=duration, unit="requests")
        users = Closed(concurrency=int(request.level), duration=duration)
        if self._options.by == "concurrency":
            return users
        # Users who start over one cycle send requests at their usual rate from the start; all at once would be a burst.
        ramp_up = RampUp(f"{self._cycle:.3f}s")
        return msgspec.structs.replace(users, think=Seconds(self._options.think), ramp_up=ramp_up)

    @property
    def _cycle(self) -> float:
        """Seconds from one request of a user to the next, without load."""
        return self._unloaded + (self._options.think if self._options.by == "users" else 0.0)

    def _test(self, request: Request, goal: Goal) -> Sequential:
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
            self._objectives.common,
            request.seconds,
            telling=goal.telling,
            level=request.level if is_open else request.level / self._cycle,
            unloaded=self._unloaded,
            purpose=request.purpose,
            classes=self._objectives.classes,
        )
