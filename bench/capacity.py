"""Whether `capacity` finds the truth, on simulated servers of many kinds in virtual time: python -m bench capacity [NAME ...]

The truth is the highest rate at which the share of requests that violate a limit is what is allowed, from long runs. Each seed then
searches with simulated probes, through the same search and the same test as the command. An interval without one of its ends is a
miss. bench/live_capacity.py does the same with live servers.
"""

import math
import statistics
import sys
from collections.abc import Sequence

import msgspec
import numpy as np

from bench.common import Line, show
from bench.virtual_server import (
    FAILURES,
    Lengths,
    Load,
    VirtualServer,
    constant,
    lognormal,
    mixed,
    uniform,
    violating,
)
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.slo_expression import parse_all
from inferometer.capacity_search.objectives import Objectives
from inferometer.capacity_search.probe_verdict import ProbeTest, plan_of
from inferometer.capacity_search.search import bracket, following
from inferometer.capacity_search.served import served_rate
from inferometer.capacity_search.trials import Bracket, Goal, Request, Trial
from inferometer.conduct.capacity_probe import Watch
from inferometer.records import Columns
from inferometer.serve.sim.batch import BatchTiming
from inferometer.serve.sim.settings import Batch, Fixed, Sim
from inferometer.serve.sim.timing import FixedTiming, Timing

FIRST, SEEDS = 500, 3
BUDGET = 120.0
OVERHEAD = 1.2
"""Seconds that a real probe takes besides its load: starting processes, storing the records."""
CLOSE = 1.02
"""A truth that is this close to an end of the interval counts as inside: it is itself known to that."""


class Server(msgspec.Struct, frozen=True):
    """A simulated server, its workload and its objectives."""

    name: str
    spec: Batch | Fixed
    n_in: Lengths
    n_out: Lengths
    slos: tuple[str, ...]
    around: tuple[float, float]
    """Rates between which the truth lies."""

    @property
    def virtual(self) -> VirtualServer:
        def timing(seed: int) -> Timing:
            spec = self.spec
            return BatchTiming(spec, Sim(seed=seed)) if isinstance(spec, Batch) else FixedTiming(spec, Sim(seed=seed))

        return VirtualServer(timing, self.n_in, self.n_out)

    @property
    def objectives(self) -> Objectives:
        return Objectives(parse_all(list(self.slos), percentile="p90"))


CHAT = ("ttft.p90 < 2s", "tpot.p90 < 100ms")
INTERACTIVE = ("ttft.p90 < 450ms", "tpot.p90 < 40ms")
SERVERS = (
    Server("8 slots, exponential", Fixed(ttft=0.2, itl=0.1, service="exponential", max_batch=8), constant(64), uniform(2, 4), ("ttft.p90 < 1s",), (8, 30)),
    Server("batch 16, short", Batch(prefill_rate=8_000, decode_step=0.02, decode_per_seq=0.002, max_batch=16, jitter=0.1), constant(256), uniform(4, 12), ("ttft.p90 < 500ms",), (6, 40)),
    Server("README", Fixed(ttft=0.05, itl=0.01, max_batch=8), constant(256), constant(32), INTERACTIVE, (5, 40)),
    Server("batch 8, 60 ms steps", Batch(decode_step=0.06, max_batch=8), constant(256), lognormal(40, 0.5), CHAT, (0.5, 6)),
    Server("batch 64, 10 ms steps", Batch(decode_step=0.01, decode_per_seq=0.0001, max_batch=64), constant(256), constant(100), CHAT, (10, 100)),
    Server("batch 64, mixed with 20 x longer", Batch(decode_step=0.01, max_batch=64), constant(128), mixed(20, 400, 0.05), INTERACTIVE, (20, 300)),
    Server("batch 256, tpot", Batch(prefill_rate=40_000, decode_step=0.008, decode_per_seq=0.0006, max_batch=256), constant(256), lognormal(64, 0.6), INTERACTIVE, (10, 120)),
    Server("batch 512, 2 ms steps", Batch(prefill_rate=200_000, decode_step=0.002, decode_per_seq=0.00003, max_batch=512), constant(128), lognormal(50, 0.8), INTERACTIVE, (50, 900)),
    Server("whole prompts", Batch(prefill_rate=10_000, decode_step=0.02, max_batch=32, chunked_prefill=False), lognormal(512, 0.7), lognormal(32, 0.5), ("ttft.p90 < 600ms", "tpot.p90 < 80ms"), (3, 30)),
    Server("KV cache limits", Batch(decode_step=0.015, max_batch=256, kv_tokens=12_000), constant(512), lognormal(64, 0.5), CHAT, (3, 60)),
    Server("p99 of a batch engine", Batch(decode_step=0.02, decode_per_seq=0.0002, max_batch=32), constant(128), lognormal(50, 0.5), ("ttft.p99 < 300ms",), (5, 60)),
    Server("reasoning", Batch(decode_step=0.015, decode_per_seq=0.0002, max_batch=64), constant(256), lognormal(1200, 0.5), CHAT, (0.5, 8)),
    Server("one slot, e2e", Fixed(ttft=0.02, itl=0.0, jitter=0.3, max_batch=1), constant(1), constant(1), ("e2e.p90 < 100ms",), (10, 60)),
)  # fmt: skip


def truth(server: Server, requests: int = 40_000, width: float = 0.015) -> float:
    """The rate at which the worst objective is violated as often as it may be: by bisection, with common random numbers."""
    objectives = server.objectives
    limits = {one.name: one.threshold.value for one in objectives.common}
    low, high = server.around
    while high / low > 1 + width:
        middle = math.sqrt(low * high)
        count = requests if high / low < 1.3 else requests // 8
        rows, _ = server.virtual.run(Load(rate=middle), count / middle, 12_345)
        is_over = max(violating(rows, limits, 0.1).values()) > objectives.allowed
        low, high = (low, middle) if is_over else (middle, high)
    return math.sqrt(low * high)


class Search:
    """One search of a server in virtual time, from one seed."""

    def __init__(self, server: Server, seed: int, budget: float = BUDGET) -> None:
        self._server, self._seed = server, seed
        self._objectives = server.objectives
        rows, spent = server.virtual.run(Load(users=1), 0.001, seed)
        columns = Columns.of(rows)
        unloaded = {name: float(METRICS[name].values(columns)[0]) for name in ("ttft", "e2e")}  # type: ignore[misc]
        self._tokens = float(np.mean(server.n_out.draw(np.random.default_rng(seed), 2000)))
        scale = self._tokens / columns["n_want"][0]
        unloaded["e2e"] = unloaded["ttft"] + (unloaded["e2e"] - unloaded["ttft"]) * scale
        self.goal = Goal(
            budget=max(budget, 16 * unloaded["e2e"]) - spent - OVERHEAD,
            unloaded=unloaded["e2e"],
            allowed=self._objectives.allowed,
            needed=self._objectives.needed,
            slack=self._objectives.slack(unloaded),
            explore_from=4,
            overhead=OVERHEAD,
        )
        self.trials: list[Trial] = []

    def run(self) -> Bracket:
        while (request := following(self.goal, self.trials)) is not None:
            self.trials.append(self._trial(request))
        return bracket(self.goal, self.trials)

    def _trial(self, request: Request) -> Trial:
        left = self.goal.budget - sum(trial.seconds for trial in self.trials) - OVERHEAD
        known = [trial.residence for trial in self.trials if trial.residence]
        warmup = max([self.goal.unloaded, *known[-1:]])
        plan = plan_of(self.goal, request)
        test = ProbeTest(request, plan, self._objectives, warmup)
        watch = Watch(test, request.seconds, until=left)
        ramp = min(self.goal.unloaded, request.seconds / 4)
        load = Load(rate=plan.rate, users=plan.concurrency, ramp=ramp)
        number = 1_000 * self._seed + len(self.trials)
        rows, seconds = self._server.virtual.run(load, request.seconds, number, watch)
        columns = Columns.of(rows)
        found = test.verdict(columns, FAILURES)
        rate = served_rate(columns, self._tokens, watch.ended_at or request.seconds)
        return test.trial(found, seconds + OVERHEAD, rate)


class Score(msgspec.Struct, frozen=True):
    """How the searches of one server did."""

    true: float
    found: list[Bracket]
    seconds: list[float]

    @property
    def inside(self) -> int:
        return sum(one.low is not None and one.high is not None and one.low / CLOSE <= self.true <= one.high * CLOSE for one in self.found)  # fmt: skip

    @property
    def widths(self) -> list[float]:
        return [one.high / one.low if one.low and one.high else math.inf for one in self.found]


def score(server: Server, true: float, seeds: Sequence[int]) -> Score:
    searches = [Search(server, seed) for seed in seeds]
    return Score(
        true, [one.run() for one in searches], [sum(trial.seconds for trial in one.trials) for one in searches]
    )


def line(server: Server, one: Score) -> Line:
    ends = ", ".join(f"{each.low:.3g}..{each.high:.3g}" if each.low and each.high else "open" for each in one.found)
    what = f"{ends}; width x {statistics.median(one.widths):.2f}, {max(one.seconds):.0f} s at most"
    return Line(server.name, what, f"truth {one.true:.3g}", one.inside == len(one.found))


def main(names: Sequence[str] = (), first: int = FIRST, seeds: int = SEEDS) -> int:
    chosen = [server for server in SERVERS if not names or any(name in server.name for name in names)]
    scores = []
    lines = []
    for server in chosen:
        scores.append(score(server, truth(server), range(first, first + seeds)))
        lines.append(line(server, scores[-1]))
        print(lines[-1], flush=True)
    widths = sorted(width for one in scores for width in one.widths)
    total, inside = len(widths), sum(one.inside for one in scores)
    nine = widths[math.ceil(0.9 * total) - 1]
    lines += [
        Line("the truth is inside", f"{inside} of {total}", ">= 0.9", inside >= 0.9 * total),
        Line("median width", f"{statistics.median(widths):.2f}", "<= 1.3", statistics.median(widths) <= 1.3),
        Line("nine of ten", f"{nine:.2f}", "<= 1.6", nine <= 1.6),
    ]
    return show("capacity", lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
