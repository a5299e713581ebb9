"""Compare the runs of B with those of A: for each figure its ratio, an interval, a verdict and a sentence.

A side is one run, or several repeats. log_ratio.py has the methods: pairs with one seed each, repeats without pairs, or one run
per side, whose interval does not cover run-to-run variation. The failure rate is compared by its difference (share_difference.py).
The structs define the layout of the JSON file.

A difference is clear if the 95 % interval of the ratio excludes 1. For metrics that are named by `--fail-if`, or else by the runs'
objectives, Holm's adjusted p-value decides instead, so that a comparison with many named metrics raises no more false alarms
than one with a single metric. Other metrics are there to be looked at, and are not adjusted.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from inferometer import __version__
from inferometer.analysis import comparison_text as text
from inferometer.analysis import log_ratio, settings
from inferometer.analysis.fail_if import FailIf
from inferometer.analysis.log_ratio import LogRatio, exp
from inferometer.analysis.run_figures import (
    FAILURE_RATE,
    GROWING,
    NAMES,
    USUAL,
    Figure,
    figure,
    is_higher_better,
    parts,
    percentile_errors,
)
from inferometer.analysis.share_difference import ShareDifference, failure_rates
from inferometer.analysis.slo_expression import parse_all
from inferometer.analysis.summary import Measured

Verdict = Literal["better", "worse", "no clear difference"]
ALPHA = 0.05
EFFECT = 0.05
"""The difference that projections are about, if no condition names another."""
POINT = 0.01
"""The same for the failure rate: one percentage point."""
Difference = LogRatio | ShareDifference


class Side(msgspec.Struct, frozen=True):
    """The runs of one side."""

    label: str
    runs: tuple[Measured, ...]


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of B compared with that of A. Numbers that are not known are null."""

    ratio: float | None
    """B / A: with several runs, of the geometric means."""
    ci: tuple[float | None, float | None]
    """95 % confidence interval of the ratio."""
    verdict: Verdict
    sentence: str
    a: float | None
    b: float | None
    unit: str
    better: Literal["lower", "higher"]
    method: log_ratio.Method | None
    p: float | None = None
    """Two-sided p-value of "there is no difference"."""
    p_holm: float | None = None
    """The same, adjusted for the number of named metrics; null for a metric that is not named."""
    sign_flip: float | None = None
    """p-value of the exact sign-flip test, for pairs."""
    requests: tuple[int, int] = (0, 0)
    """How many requests each side's figure is computed from."""
    projection: str = ""
    """How much more to measure until a difference would show; empty if there is a clear difference, or if it is not known."""
    values: tuple[tuple[float | None, ...], tuple[float | None, ...]] = ((), ())
    """The value of each run, A's and B's; of pairs, in the order of the pairs."""
    difference: float | None = None
    """B - A as a share, for the failure rate, which has no ratio because it may be 0."""
    difference_ci: tuple[float | None, float | None] = (None, None)
    """95 % confidence interval of the difference."""


class StageComparison(msgspec.Struct, frozen=True):
    name: str
    metrics: dict[str, MetricComparison]


class ConditionResult(msgspec.Struct, frozen=True):
    """How a condition of `--fail-if` was judged."""

    condition: str
    status: Literal["fails", "passes", "undecided"]
    reason: str
    stage: str = ""
    within: bool | None = None
    """Whether B is worse by at most the margin as measured, which is what an undecided condition counts as; null without figures."""


class SideInfo(msgspec.Struct, frozen=True):
    label: str
    url: str
    model: str
    runs: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison found."""

    schema: int = 1
    inferometer: str = __version__
    a: SideInfo
    b: SideInfo
    metrics: dict[str, MetricComparison]
    """Empty if the runs have several stages."""
    stages: tuple[StageComparison, ...] = ()
    conditions: tuple[ConditionResult, ...] = ()
    notes: tuple[str, ...] = ()
    """What limits the comparison, such as that it does not cover run-to-run variation."""

    def is_passed(self, strict: bool = False) -> bool:
        """Whether no condition fails: one that is undecided counts as the measured figures say or, with `strict`, fails."""
        return all(
            each.status == "passes" or (each.status == "undecided" and not strict and bool(each.within))
            for each in self.conditions
        )


class Compared(msgspec.Struct, frozen=True):
    """A comparison, with the runs that it is about."""

    a: Side
    b: Side
    found: Comparison


def compare(a: Side, b: Side, conditions: Sequence[FailIf] = (), pairs: bool | None = None) -> Comparison:
    """Compare two sides. `pairs`: run i of A belongs to run i of B; None: if the seeds of the runs say so."""
    if pairs is None:
        b, pairs = by_seed(a, b)
    stages = parts(a.runs[0][1])
    each = []
    for index in range(len(stages)):
        name = getattr(stages[index], "name", "")
        metrics, ratios = _stage(a, b, index, len(stages) > 1, conditions, pairs)
        each.append((StageComparison(name, metrics), ratios))
    results = _judge(each, conditions)
    several = len(each) > 1
    return Comparison(
        a=_about(a),
        b=_about(b),
        metrics={} if several else each[0][0].metrics,
        stages=tuple(stage for stage, _ in each) if several else (),
        conditions=results,
        notes=tuple(_notes(a, b, pairs)),
    )


def by_seed(a: Side, b: Side) -> tuple[Side, bool]:
    """Whether each seed occurs once per side, so that runs with the same seed are pairs; and B in the order of A's seeds."""
    seeds = [[run.manifest.seeds.get("seed", 0) for run, _ in side.runs] for side in (a, b)]
    if len(seeds[0]) < 2 or sorted(seeds[0]) != sorted(seeds[1]) or len(set(seeds[0])) < len(seeds[0]):
        return b, False
    ordered = tuple(b.runs[seeds[1].index(seed)] for seed in seeds[0])
    return msgspec.structs.replace(b, runs=ordered), True


def _about(side: Side) -> SideInfo:
    manifest = side.runs[0][0].manifest
    url = settings.text(manifest, "server", "url")
    urls = ", ".join(map(str, url)) if isinstance(url, list | tuple) else str(url or "")
    model = str(settings.text(manifest, "server", "model") or "")
    return SideInfo(side.label, urls, model, tuple(str(run.folder) for run, _ in side.runs))


def _notes(a: Side, b: Side, pairs: bool) -> list[str]:
    """How the sides were compared, and what was left out."""
    overloaded = [label for label, side in (("A", a), ("B", b)) if _is_overloaded(side)]
    note = f"overloaded on side {' and '.join(overloaded)}: latencies have no steady value there, and are not compared"
    return [_method(a, b, pairs), *([note] if overloaded else [])]


def _is_overloaded(side: Side) -> bool:
    """Whether a run, or a stage of one, is overloaded."""
    each = [part.overload for _, summary in side.runs for part in parts(summary)]
    return any(found is not None and found.status == "overloaded" for found in each)


def _method(a: Side, b: Side, pairs: bool) -> str:
    if len(a.runs) == len(b.runs) == 1:
        return (
            "one run per side: the intervals are from within the runs, and this does not cover run-to-run variation; repeat "
            "the runs (inferometer run --repeat, or inferometer ab) to cover it"
        )
    if pairs:
        few = " (fewer than the 8 pairs that are recommended)" if len(a.runs) < 8 else ""
        return f"{len(a.runs)} pairs of runs{few}: t interval of the log ratios, which covers run-to-run variation"
    note = f"{len(a.runs)} against {len(b.runs)} runs: Welch's interval, which covers run-to-run variation"
    if min(len(a.runs), len(b.runs)) == 1:
        note = f"{len(a.runs)} against {len(b.runs)} runs: the run-to-run variation of one side stands for both"
    return note


# --- the figures of a stage ------------------------------------------------------------------------------------------


def _stage(
    a: Side, b: Side, index: int, several: bool, conditions: Sequence[FailIf], pairs: bool
) -> tuple[dict[str, MetricComparison], dict[str, Difference]]:
    """Compare every figure of a stage; also the log ratios, for the conditions."""
    named = _named(a, conditions)
    wanted = [name for name in dict.fromkeys([*USUAL, *named]) if name != FAILURE_RATE]
    own = [[parts(summary)[index] for _, summary in side.runs] for side in (a, b)]
    figures = {name: tuple([figure(part, name) for part in side] for side in own) for name in wanted}
    stage = index if several else None
    ratios = _ratios(a, b, figures, stage, pairs)
    failures = failure_rates([run for run, _ in a.runs], [run for run, _ in b.runs], stage)
    found: dict[str, Difference] = ratios | ({FAILURE_RATE: failures} if failures else {})
    adjusted = log_ratio.holm({name: each.p() for name, each in found.items() if name in named})
    result = {}

    def effect(name: str, usual: float) -> float:
        return max((each.margin for each in conditions if each.metric == name), default=0.0) or usual

    for name, sides in figures.items():
        if name in named or any(each.value is not None for side in sides for each in side):
            result[name] = _metric(name, sides, ratios.get(name), adjusted.get(name), effect(name, EFFECT))
    if failures and (FAILURE_RATE in named or failures.a.hits or failures.b.hits):
        result[FAILURE_RATE] = _failures(failures, adjusted.get(FAILURE_RATE), effect(FAILURE_RATE, POINT))
    return result, found


def _named(a: Side, conditions: Sequence[FailIf]) -> list[str]:
    """The metrics that Holm's adjustment is over: those of the conditions, or else those of the runs' objectives."""
    if conditions:
        return [condition.metric for condition in conditions]
    slos = parse_all(settings.slos(a.runs[0][0].manifest))
    subjects = ["goodput" if slo.kind == "goodput" else slo.subject for slo in slos]
    return [name for name in subjects if name in NAMES]


def _ratios(
    a: Side, b: Side, figures: Mapping[str, tuple[list[Figure], ...]], stage: int | None, pairs: bool
) -> dict[str, LogRatio]:
    values: dict[str, list[list[float]]] = {}
    for name, sides in figures.items():
        if all(each.has_ratio for side in sides for each in side):
            values[name] = [[each.value or 0.0 for each in side] for side in sides]
    if len(a.runs) == len(b.runs) == 1:
        return _single(a, b, figures, values, stage)
    method = log_ratio.paired if pairs else log_ratio.unpaired
    return {name: method(*known) for name, known in values.items()}


def _single(
    a: Side,
    b: Side,
    figures: Mapping[str, tuple[list[Figure], ...]],
    values: Mapping[str, list[list[float]]],
    stage: int | None,
) -> dict[str, LogRatio]:
    by_metric: dict[str, tuple[str, ...]] = {}
    for name in values:
        metric, _, statistic = name.partition(".")
        if statistic.startswith("p") and all(side[0].is_supported for side in figures[name]):
            by_metric[metric] = (*by_metric.get(metric, ()), statistic)
    percentiles = [percentile_errors(side.runs[0][0], stage, by_metric) for side in (a, b)]
    ratios = {}
    for name, ((one,), (two,)) in values.items():
        errors = [
            found.get(name, side[0].relative_error) for found, side in zip(percentiles, figures[name], strict=True)
        ]
        if errors[0] is not None and errors[1] is not None:
            ratios[name] = log_ratio.single(one, two, (errors[0], errors[1]))
    return ratios


def _metric(
    name: str, sides: tuple[list[Figure], ...], found: LogRatio | None, p_holm: float | None, effect: float
) -> MetricComparison:
    a, b = (_typical([each.value for each in side]) for side in sides)
    counts = [sum(each.count for each in side) for side in sides]
    is_overloaded = [not any(each.is_steady for each in side) for side in sides]
    higher = is_higher_better(name)
    ratio: float | None = None
    ci: tuple[float | None, float | None] = (None, None)
    verdict: Verdict = "no clear difference"
    projection = ""
    if found is not None:
        low, high = found.interval()
        ratio, ci = _rounded(exp(found.value)), (_rounded(exp(low)), _rounded(exp(high)))
        if (found.p() if p_holm is None else p_holm) <= ALPHA and found.value:
            verdict = "better" if (found.value > 0) == higher else "worse"
        sentence = text.sentence(name, verdict, found)
        if verdict == "no clear difference":
            projection = text.more(found, effect, len(sides[0]), min(counts))
            sentence += f"; {projection}"
    elif a is not None and b is not None and math.isinf(a) != math.isinf(b):
        verdict = "better" if math.isinf(a) else "worse"
        sentence = text.infinite(name, "A" if math.isinf(a) else "B")
    elif is_overloaded[0] != is_overloaded[1] and name.partition(".")[0] in GROWING:
        verdict = "better" if is_overloaded[0] else "worse"
        sentence = text.growing(name, "A" if is_overloaded[0] else "B")
    else:
        ratio = _rounded(b / a) if a and b and 0 < a < math.inf and 0 < b < math.inf else None
        sentence = text.not_compared(name, sides)
    return MetricComparison(
        ratio=ratio, ci=ci, verdict=verdict, sentence=sentence, a=a, b=b,
        unit=sides[0][0].unit, better="higher" if higher else "lower",
        method=found.method if found else None, p=_rounded(found.p()) if found else None,
        p_holm=None if p_holm is None else _rounded(p_holm), sign_flip=found.sign_flip if found else None,
        requests=(counts[0], counts[1]), projection=projection,
        values=(tuple(each.value for each in sides[0]), tuple(each.value for each in sides[1])),
    )  # fmt: skip


def _failures(found: ShareDifference, p_holm: float | None, effect: float) -> MetricComparison:
    verdict: Verdict = "no clear difference"
    if (found.p() if p_holm is None else p_holm) <= ALPHA and found.value:
        verdict = "worse" if found.value > 0 else "better"
    low, high = found.interval()
    projection = text.more_failures(found, effect) if verdict == "no clear difference" else ""
    return MetricComparison(
        ratio=None, ci=(None, None), verdict=verdict,
        sentence="; ".join(filter(None, (text.failures(verdict, found), projection))),
        a=_rounded(found.a.value), b=_rounded(found.b.value), unit="%", better="lower", method=None,
        p=_rounded(found.p()), p_holm=None if p_holm is None else _rounded(p_holm),
        requests=(found.a.count, found.b.count), projection=projection,
        difference=_rounded(found.value), difference_ci=(_rounded(low), _rounded(high)),
    )  # fmt: skip


def _typical(values: Sequence[float | None]) -> float | None:
    """The geometric mean, 0 if one is; infinite if most are, None if one is missing or only some are infinite. The arithmetic mean if
    one is negative, as the network's time may be."""
    known = [value for value in values if value is not None]
    finite = [value for value in known if math.isfinite(value)]
    if len(known) < len(values):
        return None
    if min(known, default=1.0) < 0:
        return _rounded(math.fsum(known) / len(known))
    if 0 in known:
        return 0.0
    if len(finite) < len(known):
        return math.inf if 2 * len(finite) < len(known) or not finite else None
    return _rounded(math.exp(math.fsum(map(math.log, finite)) / len(finite)))


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")


# --- conditions ------------------------------------------------------------------------------------------------------

Stages = Sequence[tuple[StageComparison, Mapping[str, Difference]]]


def _judge(each: Stages, conditions: Sequence[FailIf]) -> tuple[ConditionResult, ...]:
    """Judge the conditions of all stages together: each stage's is a test of its own."""
    tests: dict[str, float] = {}
    for number, (_, ratios) in enumerate(each):
        for condition in conditions:
            if (found := ratios.get(condition.metric)) is not None:
                tests[f"{number} {condition}"] = _p_worse(found, condition)
    adjusted = log_ratio.holm(tests)
    return tuple(
        _condition(condition, stage, ratios.get(condition.metric), adjusted.get(f"{number} {condition}", 1.0))
        for number, (stage, ratios) in enumerate(each)
        for condition in conditions
    )


def _p_worse(found: Difference, condition: FailIf) -> float:
    """Two-sided p-value that suits the 95 % interval: small if B is shown to be worse by more than the margin."""
    if is_higher_better(condition.metric):
        return 2 * found.p_below(-condition.limit)
    return 2 * found.p_above(condition.limit)


def _condition(condition: FailIf, stage: StageComparison, found: Difference | None, p: float) -> ConditionResult:
    metric = stage.metrics.get(condition.metric)
    if metric is None:  # no request counts, so there is no failure rate
        return ConditionResult(str(condition), "undecided", f"{condition.metric} was not measured", stage.name)
    status: Literal["fails", "passes", "undecided"] = "fails" if metric.verdict == "worse" else "undecided"
    if found is not None:
        low, high = found.interval()
        worst = -low if is_higher_better(condition.metric) else high
        status = "fails" if p <= ALPHA else "passes" if worst < condition.limit else "undecided"
    within = _is_within(condition, metric, found)
    reason = metric.sentence
    if status == "undecided" and within is not None:
        reason = f"close to the margin, and {'within' if within else 'beyond'} it as measured: {reason}"
    return ConditionResult(str(condition), status, reason, stage.name, within)


def _is_within(condition: FailIf, metric: MetricComparison, found: Difference | None) -> bool | None:
    """Whether B is worse by at most the margin, by the measured figures alone; None if a side has none."""
    if found is not None:
        difference = found.value
    elif metric.a is None or metric.b is None:
        return None
    elif metric.ratio is not None:
        difference = math.log(metric.ratio)
    else:  # one of the figures is 0 or infinite
        difference = 0.0 if metric.a == metric.b else math.copysign(math.inf, metric.b - metric.a)
    return (-difference if is_higher_better(condition.metric) else difference) <= condition.limit
