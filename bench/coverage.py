"""Do 95 % confidence intervals contain the truth in 95 % of runs? Simulated runs whose true figures are known (bench/simulate.py).

    python bench/coverage.py [--runs 1000]

Long runs: the interval contains the truth in 90 to 99 % of the runs. Short runs, which cannot know how long the queue can get:
most have no upper bound or call the percentile unsupported, and of the bounds that they print at least 90 % hold. The p99 of a
quiet server is supported in at least 90 % of the runs, and at most 5 % of the runs call a p99 supported that is off by more than the
5 % which support overlooks, whether the queue is the whole latency or a small part of it.
Every run goes through the functions that the report uses.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from bench import simulate
from bench.common import Line, show
from inferometer.analysis import blocks
from inferometer.analysis.distributions import NO_GAPS, distributions, itl_by_stage
from inferometer.analysis.gaps import gather
from inferometer.analysis.percentiles import NEAR, PERCENTILES, Distribution
from inferometer.records import Run

LEAST, MOST = 0.90, 0.99
WRONG = 0.05
"""Of all runs, how many may support a p99 that is far off."""
TRUTH_RUNS = 400

Interval = tuple[float | None, float | None]
Truth = dict[str, float]


class Support(msgspec.Struct):
    """Runs of which a share of at least `least` has to support the p99."""

    name: str
    make: Callable[[np.random.Generator], tuple[simulate.Array, simulate.Array]]
    truth: float
    least: float = 0.0


class Case(msgspec.Struct):
    name: str
    make: Callable[[np.random.Generator], Run]
    metric: str
    truth: Callable[[], Truth]
    figures: tuple[str, ...]
    short: bool = False


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    lines = [line for number, case in enumerate(cases()) for line in judge(case, options.runs, number)]
    lines += [line for number, case in enumerate(SUPPORT) for line in judge_support(case, options.runs, number)]
    return show("coverage", lines, runs=options.runs, seconds=round(time.perf_counter() - began))


def cases() -> list[Case]:
    return [
        independent(1_000, ("p50", "p90", "p99", "mean")),
        independent(10_000, ("p50", "p90", "p99", "mean")),
        queue(0.5, 10_000, ("p50", "p90", "p99", "mean", "share")),
        queue(0.8, 30_000, ("p50", "p90", "mean", "share")),
        queue(0.8, 100_000, ("p99",)),
        engine(60, 1, ("p50", "p90", "p99", "mean")),
        engine(60, 4, ("p50", "p90", "p99", "mean")),
        independent(10_000, ("p999",), short=True),
        queue(0.5, 1_000, ("p99",), short=True),
        queue(0.8, 1_000, ("p90",), short=True),
        queue(0.8, 3_000, ("p90", "p99"), short=True),
        queue(0.8, 10_000, ("p99",), short=True),
        engine(5, 1, ("p99",), short=True),
    ]


def _beside(base: float, load: float, count: int) -> Support:
    def make(rng: np.random.Generator) -> tuple[simulate.Array, simulate.Array]:
        at, waited = simulate.queue(rng, load, count)
        return at, base + waited

    truth = base + simulate.exponential_quantile(0.99, simulate.SERVICE / (1 - load))
    return Support(f"M/M/1 at {load} beside {base * 1e3:g} ms, {count:,} requests", make, truth)


SUPPORT = (
    Support("quiet server, 1,000 requests", lambda rng: simulate.quiet(rng, 1_000), simulate.QUIET, LEAST),
    Support("quiet server, 5,000 requests", lambda rng: simulate.quiet(rng, 5_000), simulate.QUIET, LEAST),
    *(_beside(base, 0.8, count) for base in (0.0, 0.2, 0.5, 1.0) for count in (1_000, 5_000)),
)


def independent(count: int, figures: tuple[str, ...], short: bool = False) -> Case:
    return Case(
        f"independent, {count:,} requests",
        lambda rng: simulate.requests_run(*simulate.independent(rng, count)),
        "e2e",
        lambda: _exponential(simulate.SERVICE),
        figures,
        short,
    )


def queue(load: float, count: int, figures: tuple[str, ...], short: bool = False) -> Case:
    return Case(
        f"M/M/1 at {load}, {count:,} requests",
        lambda rng: simulate.requests_run(*simulate.queue(rng, load, count)),
        "e2e",
        lambda: _exponential(simulate.SERVICE / (1 - load)),
        figures,
        short,
    )


def engine(seconds: float, tokens: int, figures: tuple[str, ...], short: bool = False) -> Case:
    return Case(
        f"engine, {seconds:.0f} s" + (f", {tokens} tokens per chunk" if tokens > 1 else ""),
        lambda rng: simulate.chunks_run(*simulate.engine(rng, seconds, tokens)),
        "itl",
        lambda: _simulated(tokens),
        figures,
        short,
    )


def _exponential(mean: float) -> Truth:
    values = {name: simulate.exponential_quantile(p / 1000, mean) for name, p in PERCENTILES.items()}
    return values | {"mean": mean, "share": 0.05}


def _simulated(tokens: int) -> Truth:
    """Percentiles over many runs of 60 s: their own error is a twentieth of one run's."""
    rng = np.random.default_rng(10_000 + tokens)
    gaps = []
    for _ in range(TRUTH_RUNS):
        arrival, start, _ = simulate.engine(rng, 60, tokens)
        each = np.diff(arrival)
        inside = np.ones(len(each), np.bool_)
        inside[start[1:] - 1] = False
        gaps.append(each[inside].astype(np.uint32))
    values = np.concatenate(gaps)
    found = np.quantile(values, [p / 1000 for p in PERCENTILES.values()])
    return dict(zip(PERCENTILES, (found / 1e9).tolist(), strict=True)) | {"mean": float(values.mean()) / 1e9}


class Score(msgspec.Struct):
    """How the intervals of one figure did, over all runs of a case."""

    held: int = 0
    """Intervals that contain the truth; an end without a bound always does."""
    bounds: int = 0
    bounds_held: int = 0
    open: int = 0
    """Runs without an upper bound, or that call the percentile unsupported."""
    effect: float = 0.0
    """Sum of the design effects."""

    def add(self, truth: float, ends: Interval, found: Distribution, figure: str) -> None:
        low, high = ends
        ok = [truth >= low] if low is not None else []
        ok += [truth <= high] if high is not None else []
        self.held += all(ok)
        self.bounds += len(ok)
        self.bounds_held += sum(ok)
        self.open += high is None or figure in found.unsupported
        self.effect += found.design_effect.get(figure, 0.0)


def judge(case: Case, runs: int, seed: int) -> list[Line]:
    rng, truth = np.random.default_rng(seed), case.truth()
    scores = {figure: Score() for figure in case.figures}
    for _ in range(runs):
        run = case.make(rng)
        found = measured(run, case.metric)
        for figure, score in scores.items():
            score.add(truth[figure], interval(run, found, figure, truth), found, figure)
    return [_line(f"{case.name}: {figure}", score, runs, case.short) for figure, score in scores.items()]


def _line(what: str, score: Score, runs: int, short: bool) -> Line:
    effect = f"design effect {score.effect / runs:.1f}" if score.effect else ""
    if short:
        share = score.bounds_held / max(score.bounds, 1)
        words = f"{share:.1%} of bounds hold, {score.open / runs:.0%} open"
        return Line(what, words, f">= {LEAST:.0%}       {effect}", share >= LEAST)
    share = score.held / runs
    words = f"{share:.1%} hold" + (f", {score.open / runs:.0%} open" if score.open else "")
    return Line(what, words, f"{LEAST:.0%} to {MOST:.0%}  {effect}", LEAST <= share <= MOST)


def judge_support(case: Support, runs: int, seed: int) -> list[Line]:
    """How often the p99 is supported, and how often although it is far off."""
    rng, supported, wrong = np.random.default_rng(seed), 0, 0
    for _ in range(runs):
        found = measured(simulate.requests_run(*case.make(rng)), "e2e")
        if found.supported["p99"]:
            supported += 1
            wrong += abs((found.p99 or 0.0) - case.truth) > NEAR * case.truth
    ok = supported >= case.least * runs and wrong <= WRONG * runs
    words = f"{supported / runs:.0%} supported, {wrong / runs:.1%} of all runs wrong"
    return [Line(f"{case.name}: p99", words, f">= {case.least:.0%}, <= {WRONG:.0%}", ok)]


def measured(run: Run, metric: str) -> Distribution:
    """The statistics of a metric, as the report computes them."""
    everything = np.ones(len(run.records.rows), np.bool_)
    if metric == "itl":
        return itl_by_stage(run, gather(run, everything))[0]
    return distributions(run, everything, NO_GAPS, True)[metric]


def interval(run: Run, found: Distribution, figure: str, truth: Truth) -> Interval:
    """The 95 % interval of a percentile, of the mean, or of the share of requests above the true p95."""
    if figure != "share":
        return found.ci[figure]
    rows = run.records.rows
    slow = rows["done"] - rows["intended"] > truth["p95"] * 1e9
    at = rows["intended"]
    result = blocks.proportion(slow, at, int(at.min()), int(at.max()))
    return result.low, result.high


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
