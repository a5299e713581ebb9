"""The search for a server's capacity with real probes: one short run each, watched while it runs, all in one folder."""

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from inferometer import records, workload
from inferometer.analysis.slo_expression import parse_all
from inferometer.analysis.slo_presets import PRESETS
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.summary import Summary
from inferometer.analysis.sweep import MeasuredCell
from inferometer.apis import APIS
from inferometer.capacity_search.objectives import ClassObjectives, Objectives, excess, is_counted
from inferometer.capacity_search.probe_verdict import ProbeTest, plan_of
from inferometer.capacity_search.result import Capacity, Probe
from inferometer.capacity_search.search import bracket, following
from inferometer.capacity_search.served import Lengths, served_rate
from inferometer.capacity_search.trials import Bracket, By, Goal, Request, Trial
from inferometer.conduct.capacity_probe import Watch, record
from inferometer.conduct.experiment import Cell, Experiment, RunList, measure_cells, new_experiment
from inferometer.conduct.measuring import measure_to_end
from inferometer.config.data.mix import Mix
from inferometer.config.fields import RampUp, Seconds
from inferometer.config.loads import Closed, Poisson
from inferometer.config.schema import Config
from inferometer.config.secret import without_password
from inferometer.errors import UserError
from inferometer.records import Manifest, Run
from inferometer.units import format_seconds

if TYPE_CHECKING:
    from inferometer.report.capacity_view import SearchView

_OVERHEAD = 1.5
"""Seconds for starting the client and storing the records of a probe."""
_UNLOADED = 0.5
"""Seconds of a request if the first requests could not find it out."""
_BUDGET = 120.0
"""Seconds for a search, unless the user says otherwise, or responses take too long for that."""
_RESPONSES, _FEWEST = 16.0, 2.0
"""A search should take this many times as long as a response. A budget that is shorter by more than the second factor is refused."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a search. The table of options checks the values (options.py)."""

    by: By = "rate"
    budget: float | None = None
    """Seconds. None: two minutes, or more if responses take too long for that."""
    percentile: str = "p90"
    think: float = 20.0
    start: float | None = None
    precision: float = 0.05
    at_least: float | None = None
    """The level that must hold: where the search starts, unless `start` is given."""


def with_objectives(config: Config) -> Config:
    """The config with the default objectives, if it has none: the preset chat, and inference for tensor servers."""
    if config.slos or any(_class_slos(config)):
        return config
    preset = "chat" if APIS[config.server.api].response == "text" else "inference"
    return msgspec.structs.replace(config, slo=[preset])


def find(config: Config, options: Options, view: "SearchView") -> tuple[Capacity, Manifest]:
    """Search for the capacity; return it and the manifest of the last probe.

    Ctrl-C ends the search with what was found so far, if a probe is complete. So does a server that no longer responds.
    """
    presets = tuple(text.strip() for text in config.slos if text.strip() in PRESETS)
    has_presets = bool(presets) or any(text.strip() in PRESETS for text in _class_slos(config))
    objectives = parse_all(config.slos, percentile=options.percentile)
    config, classes = _with_class_objectives(config, options.percentile)
    required = Objectives(objectives, classes)
    if not required.every:
        raise UserError(
            "there is no objective to hold", "give --slo, such as --slo chat or --slo 'ttft.p90 < 1s'", "slo"
        )
    started = time.monotonic()
    client = msgspec.structs.replace(config.client, grace=Seconds(0.1))
    config = msgspec.structs.replace(config, slo=[str(one) for one in objectives], client=client)
    with new_experiment(config, RunList(kind="capacity")) as experiment:
        prober = _Prober(config, options, required, view)
        was_interrupted = prober.search(experiment)
    if not prober.probes:
        raise KeyboardInterrupt
    last, goal = prober.last, prober.goal
    assert last is not None and goal is not None
    found = bracket(goal, prober.trials)
    batch = last.manifest.config.get("data")
    capacity = Capacity(
        by=options.by,
        bracket=found,
        limited_by=_limit(prober.probes, found),
        probes=tuple(prober.probes),
        slos=tuple(required.names),
        presets=presets,
        percentile=options.percentile if has_presets else None,
        budget=prober.budget,
        asked_budget=prober.asked_budget,
        seconds=time.monotonic() - started,
        think=options.think,
        url=without_password(config.server.urls[0]),
        model=str(_section(last, "server").get("model", "")),
        has_text=APIS[config.server.api].response == "text",
        batch=_whole(batch.get("batch")) if isinstance(batch, dict) else None,
        interrupted=was_interrupted,
        folder=str(experiment.folder),
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
    """What fails first above the capacity: the worst objective of the lowest probe that fails, or else of the lowest closed loop that does."""
    failing = sorted((one for one in probes if one.status == "fails" and one.slos), key=lambda one: one.level)
    levels = [one for one in failing if one.purpose != "explore" and one.level >= (found.high or 0.0)]
    first = next(iter([*levels, *(one for one in failing if one.purpose == "explore")]), None)
    if first is None:
        return None
    worst = max(first.slos, key=lambda one: (one.status == "missed", excess(one) or 0.0))
    return worst.slo.split("<")[0].split(">")[0].strip()


class _Prober:
    """Makes the probes of one search."""

    def __init__(self, config: Config, options: Options, objectives: Objectives, view: "SearchView") -> None:
        self._config, self._options, self._objectives, self._view = config, options, objectives, view
        self._started = time.monotonic()
        self._known: records.Probe | None = None
        self._lengths = Lengths()
        self.goal: Goal | None = None
        self.budget = options.budget or _BUDGET
        self.asked_budget: float | None = None
        self.trials: list[Trial] = []
        self.probes: list[Probe] = []
        self.last: Run | None = None
        self.ended_by = ""

    def search(self, experiment: Experiment) -> bool:
        """Probe until the search is over; return whether it was interrupted."""
        try:
            self.goal = goal = self._goal(self._unloaded(experiment))
            self._view.planned(goal, self._objectives, goal.unloaded, self.asked_budget)
            measure_cells(experiment, partial(self._probes, goal))
        except KeyboardInterrupt:
            return True
        except UserError as error:  # such as a server that the load has brought down
            if not self.probes:
                raise
            self.ended_by = error.line
        finally:
            self._view.over()
        return experiment.listed.interrupted

    def _unloaded(self, experiment: Experiment) -> dict[str, float]:
        """How long a request takes without load, by metric, as the first requests show that any run sends."""
        first = Closed(concurrency=1, requests=1)
        run, summary = measure_to_end(msgspec.structs.replace(self._config, load=first, output=str(experiment.folder)))
        self.last, self._known = run, run.manifest.probe
        if self._known.failure:
            raise UserError(
                f"the server does not respond as it should: {self._known.failure}", "try `inferometer infer`"
            )
        self._lengths.add(run.records.rows)
        means = {name: one.mean for name, one in summary.metrics.items() if one.mean}
        if self._known.e2e and not self._known.is_cut:
            means["e2e"] = self._known.e2e
        return means

    def _goal(self, unloaded: dict[str, float]) -> Goal:
        """What is searched for. Raises UserError when the budget that was given cannot suffice."""
        options = self._options
        takes = unloaded.get("e2e", _UNLOADED)
        enough = math.ceil(_RESPONSES * takes)
        if options.budget is None and enough > _BUDGET:
            self.budget, self.asked_budget = float(enough), _BUDGET
        elif enough > _FEWEST * self.budget:
            given, needed = (format_seconds(each).replace(" ", "") for each in (self.budget, enough))
            raise UserError(
                f"{given} is too short for a search: a response takes {format_seconds(takes)}",
                f"give it {needed}",
                "budget",
            )
        is_text = APIS[self._config.server.api].response == "text"
        return Goal(
            by=options.by,
            budget=self.budget - (time.monotonic() - self._started),
            unloaded=takes,
            allowed=self._objectives.allowed,
            needed=self._objectives.needed,
            slack=self._objectives.slack(unloaded),
            start=options.start or options.at_least,
            explore_from=4 if is_text else 1,
            think=options.think if options.by == "users" else 0.0,
            precision=options.precision,
            overhead=_OVERHEAD,
        )

    def _probes(self, goal: Goal, measured: list[MeasuredCell]) -> Iterator[Cell]:
        """Each probe is chosen by what the earlier ones have shown."""
        while (request := following(goal, self.trials)) is not None:
            self._view.probing(request, self.trials)
            started = time.monotonic()
            plan = plan_of(goal, request)
            residences = [trial.residence for trial in self.trials if trial.residence]
            test = ProbeTest(request, plan, self._objectives, max([goal.unloaded, *residences[-1:]]))
            until = goal.budget - sum(trial.seconds for trial in self.trials) - goal.overhead
            watch = Watch(test, request.seconds, self._view.progress, until)
            seed = self._config.seed + len(self.trials) + 1
            yield Cell(
                settings={"purpose": request.purpose, "level": request.level},
                config=msgspec.structs.replace(self._config, load=_load(goal, request), seed=seed),
                watch=watch,
                probe=self._known,
                ended_itself=lambda watch=watch: watch.has_stopped,  # type: ignore[misc]
            )
            _, run, summary = measured.pop()
            self.last = run
            rows = run.records.rows
            self._lengths.add(rows)
            found = test.verdict(rows, run.records.failures, self._others(summary))
            served = served_rate(rows, self._lengths.tokens, watch.ended_at or request.seconds)
            trial = test.trial(found, time.monotonic() - started, served)
            self.trials.append(trial)
            after = bracket(goal, self.trials)
            probe = record(trial, found, summary, run)
            probe = msgspec.structs.replace(probe, at=started - self._started, low=after.low, high=after.high)
            self.probes.append(probe)
            self._view.probed(probe, after)

    def _others(self, summary: Summary) -> list[SloResult]:
        """The results for objectives that are not judged by counting: means, rates, and gaps between chunks."""
        pairs = zip(self._objectives.names, self._objectives.every, strict=True)
        names = {name for name, one in pairs if not is_counted(one)}
        return [result for result in summary.slos if result.slo in names]


def _load(goal: Goal, request: Request) -> Poisson | Closed:
    plan, duration = plan_of(goal, request), Seconds(request.seconds)
    if plan.open:
        return Poisson(rate=plan.rate, duration=duration, unit="requests")
    users = Closed(concurrency=plan.concurrency, duration=duration)
    if goal.by != "users" or request.purpose == "explore":
        return users
    # Users who start over one cycle send requests at their usual rate from the start; all at once would be a burst.
    ramp_up = RampUp(f"{goal.unloaded + goal.think:.3f}s")
    return msgspec.structs.replace(users, think=Seconds(goal.think), ramp_up=ramp_up)
