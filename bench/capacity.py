"""Whether `capacity` brackets the truth, and how long it takes compared with a sweep: python -m bench capacity

The simulator's timing engine runs in virtual time, without sockets. The truth is the highest rate at which its p90 of the time to
first token keeps the limit, from 10^6 requests. Each seed then searches with simulated probes, through the same search and the same
sequential test as the command.

The sweep has ten rates in steps of half of the search's median interval (on the log scale). It knows where to look, which a user does
not: the truth is between the two rates in the middle, at a random position. Each stage is judged once, at its end, by the same test
with the same 5 %. The stages are as short as possible for an interval from the highest rate shown to hold to the lowest shown to fail
that is as narrow as the search's, in the median of 40 sweeps, and that contains the truth in 17 of 20 sweeps. A search or sweep without
one of the two ends has an infinite interval. Stages are drained, as `inferometer run --rate A:B` does it. The sweep's time has no run
to confirm the lower end; the search's does. Beside it, for information: a sweep that contains the truth in 18 of 20 sweeps, as the search
does.
"""

import math
import statistics
import sys
from collections.abc import Callable

import msgspec
import numpy as np

from bench.common import Line, show
from inferometer.analysis.slo_expression import Slo, parse_all
from inferometer.capacity_search.search import Bracket, Goal, Request, Trial, bracket, following
from inferometer.capacity_search.sequential import Sequential, judge, telling_length
from inferometer.records import CANCELLED, MISSING, ROW, Columns, Failure, StagePlan
from inferometer.serve.sim.batch import BatchTiming
from inferometer.serve.sim.settings import Batch, Fixed, Sim
from inferometer.serve.sim.timing import NEVER, FixedTiming, Job, Timing
from inferometer.units import NS

FIRST, SEEDS = 200, 20
"""The constants of the search were chosen with seeds below 30."""
BUDGET = 120.0
BUDGETS = (BUDGET, 300.0)
SHARE = 0.85
"""Of the seeds, how many have to bracket the truth."""
RELIABLE = 0.9
"""How many do: at least 18 of 20 in each case. A sweep that does as well takes longer."""
RATES = 10
STEP = 1 / 2
"""The step between a sweep's rates is the search's interval to this power, so that one rate may stay undecided. With 1/3 and 0.7
a sweep takes longer: more rates are so close to the truth that they are judged wrongly, or none may stay undecided."""
STAGES = tuple(round(8 * 1.12**number, 1) for number in range(40))
"""Lengths of a sweep's stages: 8 s to 11 minutes."""
SWEEPS = 40
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
    return FixedTiming(Fixed(ttft=0.2, itl=0.1, service="exponential", max_batch=8), Sim(seed=seed))


def batch(seed: int) -> Timing:
    spec = Batch(prefill_rate=8_000, decode_step=0.02, decode_per_seq=0.002, max_batch=16, jitter=0.1)
    return BatchTiming(spec, Sim(seed=seed))


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
    rows["queue"] = rows["compute"] = rows["server_total"] = rows["rtt"] = rows["read_delay"] = rows["n_in"] = rows[
        "cached"
    ] = rows["reasoning"] = -1
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
            trials.append(self._trial(request))
        return bracket(trials), trials

    def _trial(self, request: Request) -> Trial:
        level, longest = request.level, request.seconds
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
            purpose=request.purpose,
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
        return test.trial(request, found, elapsed + drain + OVERHEAD)


class Sweep(msgspec.Struct, frozen=True):
    """How sweeps over RATES rates did, with one length of their stages."""

    step: float
    """Between neighbouring rates: their ratio."""
    stage: float
    """Seconds of each stage."""
    hits: float
    """Share of the sweeps whose interval contains the truth."""
    width: float
    """Median of high / low."""
    seconds: float
    """Median time of a sweep."""
    sending: float
    """Without the waits for the last responses of each stage."""


def sweep(server: Server, true: float, step: float, stage: float, sweeps: int = SWEEPS) -> Sweep:
    """Sweep with stages of this length. As in a run, a stage starts when all requests of the one before have ended."""
    hits, widths, times = 0, [], []
    for seed in range(sweeps):
        rng = np.random.default_rng(77_000 + seed)
        first = true * step ** -(
            RATES / 2 - 1 + rng.uniform()
        )  # the truth is anywhere between the two rates in the middle
        low, high, spent = 0.0, math.inf, OVERHEAD
        for number in range(RATES):
            rate = first * step**number
            rows = simulate(server, rate, max(round(rate * stage), 1), 77_000 + 100 * seed + number)
            plan = StagePlan(type="poisson", open=True, rate=rate, duration=stage)
            status = judge(Columns.of(rows), plan, server.objectives).status
            low = max(low, rate) if status == "holds" else low
            high = min(high, rate) if status == "fails" else high
            spent += max(stage, int(rows["done"].max()) / NS)
        hits += low <= true <= high
        widths.append(high / low if low else math.inf)
        times.append(spent)
    return Sweep(
        step, stage, hits / sweeps, statistics.median(widths), statistics.median(times), RATES * stage + OVERHEAD
    )


def equal_sweep(server: Server, true: float, width: float, share: float = SHARE) -> Sweep:
    """The sweep with the shortest stages that gives an interval as narrow as this, which contains the truth in this share of sweeps: by
    bisection on STAGES. The longest, if none is enough."""
    step = width**STEP
    below, above = -1, len(STAGES) - 1
    best = None
    while above - below > 1:
        middle = (below + above) // 2
        one = sweep(server, true, step, STAGES[middle])
        if one.width <= width * 1.001 and one.hits >= share:
            above, best = middle, one
        else:
            below = middle
    return best or sweep(server, true, step, STAGES[above])


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
    confirmed: int


def score(server: Server, true: float, seeds: range, budget: float = BUDGET) -> Score:
    found = [Probes(server, seed).search(goal(server, budget)) for seed in seeds]
    ratios = [one.high / one.low if one.low and one.high else math.inf for one, _ in found]
    return Score(
        true,
        sum((one.low or 0.0) <= true <= (one.high or math.inf) for one, _ in found),
        sum(map(math.isfinite, ratios)),
        statistics.median(ratios),
        statistics.median(sum(trial.seconds for trial in trials) for _, trials in found),
        sum(one.confirmed for one, _ in found),
    )


def case(server: Server, true: float, seeds: range, budget: float) -> list[Line]:
    """The lines of one server and one budget."""
    one = score(server, true, seeds, budget)
    least = math.ceil(SHARE * len(seeds))
    name = f"{server.name}, {budget:.0f} s"
    brackets = f"{one.hits} of {len(seeds)}, {one.bounded} with both ends, {one.confirmed} confirmed, median width x {one.width:.2f}"
    lines = [Line(f"{name}: brackets the truth", brackets, f">= {least}", one.hits >= least)]
    if math.isinf(one.width):
        return [*lines, Line(f"{name}: time", f"{one.seconds:.0f} s", "most have no interval to compare with", False)]
    equal = equal_sweep(server, true, one.width)
    ratio = one.seconds / equal.seconds
    lines.append(Line(f"{name}: time", f"{one.seconds:.0f} s; {_words(equal)}", f"{ratio:.2f} < 0.5", ratio < 0.5))
    reliable = equal_sweep(server, true, one.width, RELIABLE)
    lines.append(Line(f"{name}: a more reliable sweep", _words(reliable), f"{one.seconds / reliable.seconds:.2f}"))
    return lines


def _words(one: Sweep) -> str:
    return (
        f"{RATES} stages of {one.stage:g} s ({100 * one.hits:.0f} % bracket, width x {one.width:.2f}): {one.seconds:.0f} s, "
        f"{one.sending:.0f} s without draining"
    )


def main(first: int = FIRST, seeds: int = SEEDS, requests: int = 1_000_000) -> int:
    lines = []
    for server in SERVERS:
        true = truth(server, requests)
        lines.append(Line(f"{server.name}: truth", f"{true:.2f} requests/s", server.slo))
        for budget in BUDGETS:
            lines += case(server, true, range(first, first + seeds), budget)
    return show("capacity", lines)


if __name__ == "__main__":
    sys.exit(main())
