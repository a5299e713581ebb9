"""The stages of a run as a report shows them: the one stage of a plain run looks like each of several."""

from collections.abc import Iterable
from typing import NamedTuple

from inferometer.analysis import settings
from inferometer.analysis.groups import Group
from inferometer.analysis.overload import Overload
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.slo import Goodput
from inferometer.analysis.slo_expression import Slo, parse
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.summary import StageSummary, Summary
from inferometer.analysis.throughput import MeasuredWindow, Throughput
from inferometer.records import Run, StagePlan
from inferometer.report import formatting
from inferometer.report.stages import describe

TITLES = {
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "E2E",
    "queue": "queue",
    "compute": "compute",
    "protocol": "protocol",
    "network": "network",
}
"""Metrics that have a chart, in this order."""


class Part(NamedTuple):
    """One stage."""

    number: int
    name: str
    plan: StagePlan
    window: MeasuredWindow
    throughput: Throughput
    metrics: dict[str, Distribution]
    overload: Overload | None
    slos: tuple[SloResult, ...]
    goodput: Goodput | None
    classes: tuple[Group, ...]
    ok: int
    failed: int

    @property
    def is_overloaded(self) -> bool:
        return self.overload is not None and self.overload.status == "overloaded"

    @property
    def remark(self) -> str:
        """Why the stage has no latencies; empty if it has."""
        return f"{self.name}: {describe(self.overload)}." if self.is_overloaded and self.overload else ""


def parts(run: Run, summary: Summary) -> list[Part]:
    """The stages of the run."""
    each: list[tuple[int, str, StageSummary | Summary]] = [(one.stage, one.name, one) for one in summary.stages]
    plan = run.manifest.plan
    return [
        Part(
            number,
            formatting.one_line(name, 40),
            plan[number],
            one.window,
            one.throughput,
            one.metrics,
            one.overload,
            one.slos,
            one.goodput,
            one.classes,
            one.counts.ok,
            one.counts.failed + one.counts.dropped,
        )
        for number, name, one in each or [(0, plan[0].name or "all requests", summary)]
    ]


def latencies(stages: list[Part]) -> list[str]:
    """The latencies that any stage has, in the order of TITLES."""
    return [name for name in TITLES if any(name in each.metrics and each.metrics[name].count for each in stages)]


def is_token_run(run: Run, stages: list[Part]) -> bool:
    """Whether responses are text, so that tokens are of interest."""
    return settings.receives_text(run.manifest) or any(each.metrics["ttft"].count for each in stages if each.metrics)


def limits(summary: Summary, metric: str) -> list[dict[str, object]]:
    """The objectives for a latency, as lines of a chart in ms. Those of a traffic class have its name."""
    return limits_of(summary.slos, metric)


def limits_of(results: Iterable[SloResult], metric: str) -> list[dict[str, object]]:
    """The same for results of several runs."""
    found = {}
    for result in results:
        objective = parse(result.expression)
        for name, threshold in _thresholds(objective):
            if name == metric:
                found[result.slo] = {"at": threshold * 1e3, "label": formatting.one_line(result.slo, 60)}
    return list(found.values())


def _thresholds(objective: Slo) -> list[tuple[str, float]]:
    if objective.kind == "metric":
        return [(objective.name, objective.threshold.value)]
    return [(condition.metric, condition.threshold.value) for condition in objective.conditions]
