"""Whether `capacity` brackets the truth, and how long it takes compared with a sweep: python -m bench capacity

The simulator's timing engine runs in virtual time, without sockets. The truth is the highest rate at which its p90 of the time to
first token keeps the limit, from 10^6 requests. Each seed then searches with simulated probes, through the same search and the same
sequential test as the command.

The sweep knows where to look: ten rates around the truth, in steps of half of the search's interval (on the log scale). Its stages
are the shortest for which the highest rate shown to hold and the lowest shown to fail are as close together as the search's, in the
median, and bracket the truth as often as the search has to. Stages are drained, as `inferometer run --rate A:B` does it.
"""

import math
import statistics
import sys
from collections.abc import Callable

import msgspec
import numpy as np

from bench.common import Line, show
from inferometer.analysis.slo_expression import Slo, parse_all
from inferometer.capacity.search import Bracket, Goal, Trial, bracket, following
from inferometer.capacity.sequential import Sequential, judge, telling_length
from inferometer.records import CANCELLED, MISSING, ROW, Columns, Failure, StagePlan
from inferometer.serve.sim.batch import BatchTiming
from inferometer.serve.sim.fixed import FixedTiming
from inferometer.serve.sim.jobs import NEVER, Job, Timing
from inferometer.serve.sim.settings import Batch, Fixed
from inferometer.units import NS

SEEDS = 20
BUDGET = 120.0
BUDGETS = (BUDGET, 300.0)
SHARE = 0.85
"""Of the seeds, how many have to bracket the truth."""
RATES = 10
STAGES = (10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0)
OVERHEAD = 1.0
"""Seconds that a real probe takes besides its load: starting processes, storing the records."""


class Server(msgspec.Struct, frozen=True):
    """A simulated server and its workload."""

    name: str
    timing: Callable[[int], Timing]
    n_in: int
    n_out: tuple[int, int]
    """Tokens per response: uniform."""
    slo: str
    around: tuple[float, float]
    """Rates between which the truth lies."""

    @property
    def objectives(self) -> tuple[Slo, ...]:
        return parse_all([self.slo])


def fixed(seed: int) -> Timing:
    return FixedTiming(Fixed(ttft=0.2, itl=0.1, service="exponential", max_batch=8), seed=seed)


def batch(seed: int) -> Timing:
    return BatchTiming(
        Batch(prefill_rate=8_000, decode_step=0.02, decode_per_seq=0.002, max_batch=16, jitter=0.1), seed=seed
    )


SERVERS = (
    Server("8 slots, exponential service", fixed, 64, (2, 4), "ttft.p90 < 1s", (12, 26)),
    Server("batch engine, 16 sequences", batch, 256, (4, 12), "ttft.p90 < 500ms", (8, 32)),
)


class _Timed(Job):
    """A job that notes when its first and its last token were due."""

    __slots__ = ("first", "last")

    def __init__(self, n: int, n_in: int, n_out: int, arrived: int) -> None:
        super().__init__(n, n_in, n_out, arrived)
        self.first = self.last = -1

    def emit(self, count: int, due: int) -> None:
        if self.first < 0:
            self.first = due
        self.last = due


def simulate(server: Server, rate: float, count: int, seed: int, until: float = math.inf) -> np.ndarray:
    """Rows of `count` requests at this rate, in virtual time; those that have not ended `until` then have no end."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, count) * NS).astype(np.int64)
    lengths = rng.integers(server.n_out[0], server.n_out[1] + 1, count)
    timing = server.timing(seed)
    jobs = []
    for number, (arrived, n_out) in enumerate(zip(at.tolist(), lengths.tolist(), strict=True), 1):
        timing.advance(arrived)
        job = _Timed(number, server.n_in, n_out, arrived)
        timing.add(job, arrived)
        jobs.append(job)
    end = int(min(until * NS, NEVER - 1))
    while timing.due <= end:
        timing.advance(timing.due)
    rows = np.zeros(count, ROW)
    rows["id"] = np.arange(count)
    rows["intended"] = rows["sent"] = at
    rows["first_token"] = [job.first if job.first >= 0 else MISSING for job in jobs]
    rows["last_token"] = rows["done"] = [job.last if job.made == job.n_out else MISSING for job in jobs]
    rows["n_out"] = rows["n_want"] = rows["streamed_tokens"] = rows["chunk_count"] = lengths
    rows["first_tokens"], rows["counted_by"], rows["open_loop"] = 1, 1, 1
    rows["turn"] = rows["turns"] = rows["session"] = -1
    rows["queue"] = rows["compute"] = rows["read_delay"] = rows["n_in"] = rows["cached"] = rows["reasoning"] = -1
    return rows


def truth(server: Server, requests: int = 1_000_000) -> float:
    """The rate at which the share of violations is what is allowed: bisection with few requests, then with many."""
    low, high = server.around
    for count, steps, width in ((requests // 10, 6, 0.0), (requests, 4, 0.04)):
        if width:
            middle = math.sqrt(low * high)
            low, high = middle / (1 + width), middle * (1 + width)
        for _ in range(steps):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if _violations(server, middle, count) > 0.1 else (middle, high)
    return math.sqrt(low * high)


def _violations(server: Server, rate: float, count: int) -> float:
    rows = simulate(server, rate, count, 12_345)
    limit = server.objectives[0].threshold.value * NS
    return float(np.mean(rows["first_token"][count // 100 :] - rows["intended"][count // 100 :] >= limit))


def unloaded(server: Server) -> float:
    rows = simulate(server, 0.01, 200, 7)
    return float(np.median(rows["done"] - rows["intended"])) / NS


class Probes:
    """Simulated probes of one server, from one seed."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server, self._seed, self._number = server, seed, 0
        self._unloaded = unloaded(server)

    def search(self, goal: Goal) -> tuple[Bracket, list[Trial]]:
        self._telling = goal.telling
        trials: list[Trial] = []
        while (request := following(goal, trials)) is not None:
            trials.append(self._trial(request.level, request.seconds, request.purpose))
        return bracket(trials), trials

    def _trial(self, level: float, longest: float, purpose: str) -> Trial:
        self._number += 1
        count = max(round(level * longest), 1)
        rows = simulate(self._server, level, count, 1_000 * self._seed + self._number, 1.5 * longest)
        plan = StagePlan(type="poisson", open=True, rate=level, duration=longest)
        test = Sequential(
            plan,
            self._server.objectives,
            longest,
            telling=self._telling,
            level=level,
            unloaded=self._unloaded,
            purpose=purpose,
        )
        done = np.where(rows["done"] == MISSING, NEVER, rows["done"])
        elapsed = longest
        for now in np.arange(0.25, longest, 0.25):
            if test.is_due(now):
                test.look(rows[done <= now * NS], int(np.searchsorted(rows["intended"], now * NS)), float(now))
                if test.decision is not None:
                    elapsed = float(now)
                    break
        sent = rows[rows["intended"] <= elapsed * NS].copy()
        ends = np.where(sent["done"] == MISSING, NEVER, sent["done"])
        drain = min(max(int(ends.max(initial=0)) / NS - elapsed, 0.0), test.patience)
        sent["failure"] = ends > (elapsed + drain) * NS
        sent["done"] = np.minimum(ends, round((elapsed + drain) * NS))
        found = test.judge_all(Columns.of(sent), (Failure(code=CANCELLED, message=""),))
        return Trial(
            level=level,
            purpose=purpose,  # type: ignore[arg-type]
            status=found.status,
            seconds=elapsed + drain + OVERHEAD,
            excess=found.excess,
            is_calm=test.is_calm(found),
            completed=(test.decision or found).overload.capacity,
        )


def sweep(server: Server, true: float, rates: list[float], seconds: float, seeds: int) -> tuple[int, float, float]:
    """Sweeps with stages of this length: how many bracket the truth, the median ratio between the lowest rate shown to fail and the
    highest shown to hold, and the median time. As in a run, a stage starts when all requests of the one before have ended."""
    hits, widths, times = 0, [], []
    for seed in range(seeds):
        low, high, spent = 0.0, math.inf, 0.0
        for number, rate in enumerate(rates):
            rows = simulate(server, rate, max(round(rate * seconds), 1), 77_000 + 100 * seed + number)
            plan = StagePlan(type="poisson", open=True, rate=rate, duration=seconds)
            status = judge(Columns.of(rows), plan, server.objectives).status
            low = max(low, rate) if status == "holds" else low
            high = min(high, rate) if status == "fails" else high
            spent += max(seconds, int(rows["done"].max()) / NS)
        hits += low <= true <= high
        widths.append(high / low if low else math.inf)
        times.append(spent + OVERHEAD)
    return hits, statistics.median(widths), statistics.median(times)


def equal_sweep(server: Server, true: float, width: float, seeds: int) -> tuple[float, int, float]:
    """The shortest stages that give an interval as narrow as this, and that brackets the truth in 17 of 20 sweeps; how many do, and
    the time of such a sweep."""
    rates = [true * math.sqrt(width) ** (index - (RATES - 1) / 2) for index in range(RATES)]
    for seconds in STAGES:
        hits, found, spent = sweep(server, true, rates, seconds, seeds)
        if found <= width * 1.001 and hits >= SHARE * seeds:
            break
    return seconds, hits, spent


def goal(server: Server, budget: float = BUDGET) -> Goal:
    base = unloaded(server)
    return Goal(
        start=4 / base,
        budget=budget,
        shortest=max(2.0, 4 * base),
        telling=telling_length(server.objectives, budget, base),
        overhead=OVERHEAD + base,
    )


class Score(msgspec.Struct, frozen=True):
    """How the search did over all seeds."""

    true: float
    hits: int
    bounded: int
    width: float
    """Median of high / low."""
    seconds: float
    """Median."""


def score(server: Server, true: float, seeds: int, budget: float = BUDGET) -> Score:
    found = [Probes(server, seed).search(goal(server, budget)) for seed in range(seeds)]
    ratios = [one.high / one.low for one, _ in found if one.low and one.high]
    return Score(
        true,
        sum((one.low or 0.0) <= true <= (one.high or math.inf) for one, _ in found),
        len(ratios),
        statistics.median(ratios) if ratios else math.inf,
        statistics.median(sum(trial.seconds for trial in trials) for _, trials in found),
    )


def main(seeds: int = SEEDS, requests: int = 1_000_000) -> int:
    lines = []
    for server in SERVERS:
        true = truth(server, requests)
        lines.append(Line(f"{server.name}: truth", f"{true:.2f} requests/s", server.slo))
        for budget in BUDGETS:
            one = score(server, true, seeds, budget)
            stage, hits, spent = equal_sweep(server, true, one.width, seeds)
            least = math.ceil(SHARE * seeds)
            name = f"{server.name}, {budget:.0f} s"
            brackets = f"{one.hits} of {seeds}, median width x {one.width:.2f} ({one.bounded} with both ends)"
            times = f"{one.seconds:.0f} s; {RATES} stages of {stage:g} s ({hits} of {seeds}): {spent:.0f} s"
            lines.append(Line(f"{name}: brackets the truth", brackets, f">= {least}", one.hits >= least))
            lines.append(Line(f"{name}: time", times, f"{one.seconds / spent:.2f} < 0.5", one.seconds < spent / 2))
    return show("capacity", lines)


if __name__ == "__main__":
    sys.exit(main())
