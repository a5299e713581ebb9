"""How often does a comparison raise a false alarm, and does it find a difference as often as it says? Simulated runs, made from records.

    python bench/comparison.py [--comparisons 200]

Servers are M/M/1 queues at load 0.7, whose requests resemble each other as they do under load. The runs of a pair have the same arrivals and
the same work per request, as with one seed, and noise of 20 % of their own on each request's service.

A/A: both sides are the same server; 95 % intervals should raise alarms in about 5 % of the comparisons. A/B: everything in B takes 5 or 10 %
longer. What a comparison says is "N more requests (or pairs) would show 5 %", which stands for a power of 80 %. So the size of the A/B runs is
the one that an A/A comparison projects, and the difference should be found in about 80 % of them. Every comparison goes through the functions
that `inferometer compare` uses.

Failure rates are compared by their difference: 2 % of the requests fail, independently or in bursts of 20 on average. A/B: 4 % fail.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from bench import simulate
from bench.common import Line, show
from inferometer.analysis import log_ratio
from inferometer.analysis.blocks import place
from inferometer.analysis.comparison import ALPHA, Comparison, Measured, Side, compare
from inferometer.analysis.log_ratio import LogRatio
from inferometer.analysis.metrics import e2e
from inferometer.analysis.percentiles import distribution
from inferometer.analysis.share_difference import failure_rates
from inferometer.analysis.summary import Summary, summarise
from inferometer.records import Failure, Run

LOAD, NOISE = 0.7, 0.2
FIGURES = ("e2e.mean", "e2e.p50", "e2e.p90", "e2e.p99")
MOST_ALARMS = {"single": 0.10, "repeats": 0.085}
"""5 % and two standard errors of the share of 200 comparisons; more for one run per side, whose errors are estimates from 20 blocks."""
LEAST_FOUND = 0.70
"""80 %, less what the projection itself, from one comparison, is off."""
MOST_REQUESTS, MOST_PAIRS = 400_000, 60
"""Larger sizes are not simulated."""
PILOTS = 20

_TEMPLATE: list[Summary] = []
Make = Callable[[np.random.Generator, float], Comparison]


def measured(at: np.ndarray, latency: np.ndarray) -> Measured:
    """A run and its summary. Only its latency matters here: the rest is that of the first run, because it takes most of the time."""
    run: Run = simulate.requests_run(at, latency)
    if not _TEMPLATE:
        _TEMPLATE.append(summarise(run))
    rows = run.records.rows
    found = distribution(e2e(rows), "s", placed=place(rows["intended"], rows["intended"][:0]))
    return run, msgspec.structs.replace(_TEMPLATE[0], metrics={"e2e": found})


def single(count: int) -> Make:
    """One run per side, with seeds of their own."""

    def make(rng: np.random.Generator, shift: float) -> Comparison:
        sides = [simulate.queue(rng, LOAD, count) for _ in range(2)]
        a, b = (measured(at, latency * by) for (at, latency), by in zip(sides, (1.0, shift), strict=True))
        return compare(Side("a", (a,)), Side("b", (b,)), pairs=False)

    return make


def repeats(runs: int, count: int, is_paired: bool) -> Make:
    """Several runs per side: pairs with one seed each, or runs with seeds of their own."""

    def make(rng: np.random.Generator, shift: float) -> Comparison:
        sides: tuple[list[Measured], list[Measured]] = ([], [])
        for _ in range(runs):
            at, work, first = _plan(rng, count)
            for index, by in enumerate((1.0, shift)):
                if index and not is_paired:
                    at, work, first = _plan(rng, count)
                service = work * np.exp(rng.normal(0, NOISE, count) - NOISE**2 / 2)
                sides[index].append(measured(at, _times(at, service, first) * by))
        a, b = (Side(label, tuple(side)) for label, side in zip("ab", sides, strict=True))
        return compare(a, b, pairs=is_paired)

    return make


def _plan(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, float]:
    """What a seed decides: arrivals, the work of each request, and the queue that the first one meets."""
    first = rng.exponential(simulate.SERVICE / (1 - LOAD)) if rng.random() < LOAD else 0.0
    return np.cumsum(rng.exponential(simulate.SERVICE / LOAD, count)), rng.exponential(simulate.SERVICE, count), first


def _times(at: np.ndarray, service: np.ndarray, first: float) -> np.ndarray:
    """Times in the system, by Lindley (see simulate.queue)."""
    walk = np.cumsum(np.concatenate([[first], service[:-1] - np.diff(at)]))
    return walk - np.minimum(np.minimum.accumulate(walk), 0) + service


def shares(make: Make, comparisons: int, shift: float, seed: int = 0) -> dict[str, tuple[float, float]]:
    """For each figure: the share of comparisons with a clear difference in the right direction, and with an interval."""
    rng = np.random.default_rng(seed)
    found = [make(rng, shift) for _ in range(comparisons)]
    result = {}
    for name in FIGURES:
        known = [each.metrics[name] for each in found if each.metrics[name].method is not None]
        clear = sum(one.verdict == "worse" or (shift == 1 and one.verdict == "better") for one in known)
        result[name] = (clear / max(len(known), 1), len(known) / comparisons)
    return result


def projected(make: Make, size: int, figure: str, shift: float) -> int | None:
    """The size (requests, or pairs) that A/A comparisons of `size` say would show the shift: the median of PILOTS projections."""
    rng, sizes = np.random.default_rng(1), []
    for _ in range(PILOTS):
        metric = make(rng, 1.0).metrics[figure]
        if metric.method is None or metric.ci[1] is None or metric.ratio is None:
            continue
        freedom = 19 if metric.method == "single" else size - 1
        error = (math.log(metric.ci[1]) - math.log(metric.ratio)) / log_ratio.student.quantile(0.95, freedom)
        found = LogRatio(0.0, error, freedom, metric.method)
        more = (log_ratio.more_values if metric.method == "single" else log_ratio.more_runs)(
            found, size, math.log(shift)
        )
        sizes.append(size + (more if more is not None else 10**9))
    return round(statistics.median(sizes)) if len(sizes) > PILOTS // 2 else None


def failing(rng: np.random.Generator, count: int, share: float, burst: int) -> Run:
    """A run of which this share of the requests fails, in bursts of geometric length with this mean."""
    at = np.cumsum(rng.exponential(simulate.SERVICE / LOAD, count))
    run: Run = simulate.requests_run(at, rng.exponential(simulate.SERVICE, count))
    starts = rng.random(count) < share / burst / (1 - share)
    lengths = rng.geometric(1 / burst, count)
    ends = np.maximum.accumulate(np.where(starts, np.arange(count) + lengths, 0))
    run.records.rows["failure"][ends > np.arange(count)] = 1
    return msgspec.structs.replace(
        run, records=msgspec.structs.replace(run.records, failures=(Failure("http_503", ""),))
    )


def failures_found(comparisons: int, runs: int, burst: int, shares: tuple[float, float]) -> float:
    """The share of comparisons in which B's failure rate is shown to differ (A/A), or to be higher."""
    rng, found = np.random.default_rng(3), 0
    for _ in range(comparisons):
        a, b = ([failing(rng, 4_000, share, burst) for _ in range(runs)] for share in shares)
        difference = failure_rates(a, b, None)
        assert difference is not None
        found += difference.p() <= ALPHA and (shares[0] == shares[1] or difference.value > 0)
    return found / comparisons


ALARMS = {
    "one run each, 5,000 requests": ("single", single(5_000)),
    "one run each, 20,000 requests": ("single", single(20_000)),
    "8 pairs of 2,000 requests": ("repeats", repeats(8, 2_000, True)),
    "5 against 5 runs of 2,000 requests": ("repeats", repeats(5, 2_000, False)),
}


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=200)
    options = parser.parse_args(arguments)
    began, lines = time.perf_counter(), []
    for name, (kind, make) in ALARMS.items():
        for figure, (share, known) in shares(make, options.comparisons, 1.0).items():
            without = f", {1 - known:.0%} without an interval" if known < 1 else ""
            is_ok = share <= MOST_ALARMS[kind] if known >= 0.25 else None
            what = f"A/A, {name}: {figure}"
            lines.append(Line(what, f"{share:.1%} alarms{without}", f"<= {MOST_ALARMS[kind]:.1%}", is_ok))
    for runs, burst in ((1, 1), (1, 20), (8, 1), (8, 20)):
        what = f"{runs} x 4,000 requests, failures {'independent' if burst == 1 else f'in bursts of {burst}'}"
        share = failures_found(options.comparisons, runs, burst, (0.02, 0.02))
        most = MOST_ALARMS["single" if runs == 1 else "repeats"]
        lines.append(Line(f"A/A, {what}", f"{share:.1%} alarms", f"<= {most:.1%}", share <= most))
        share = failures_found(options.comparisons // 2, runs, burst, (0.02, 0.04))
        lines.append(Line(f"2 and 4 %, {what}", f"{share:.0%} found", "no bound"))
    for shift in (1.05, 1.1):
        for figure in FIGURES:
            requests = projected(single(20_000), 20_000, figure, shift)
            lines.append(_power("one run each", "requests", figure, shift, requests, MOST_REQUESTS, single, options))
            pairs = projected(repeats(8, 2_000, True), 8, figure, shift)
            of_2000 = lambda size: repeats(size, 2_000, True)  # noqa: E731
            lines.append(_power("pairs of 2,000", "pairs", figure, shift, pairs, MOST_PAIRS, of_2000, options))
    return show("comparison", lines, comparisons=options.comparisons, seconds=round(time.perf_counter() - began))


def _power(
    name: str, unit: str, figure: str, shift: float, size: int | None, most: int, make: Callable[[int], Make],
    options: argparse.Namespace,
) -> Line:  # fmt: skip
    what = f"+{100 * (shift - 1):.0f} %, {name}: {figure}"
    if size is None or size > most:
        return Line(what, "not simulated", f"needs {'more' if size is None else f'{size:,}'} {unit}")
    share, _ = shares(make(size), options.comparisons // 2, shift, 2)[figure]
    return Line(what, f"{share:.0%} found with {size:,} {unit}", f">= {LEAST_FOUND:.0%}", share >= LEAST_FOUND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
