"""The figures of one level of one engine: the layout of `levels` in the JSON file."""

import msgspec

from inferometer.analysis.efficiency import Estimate, Interval
from inferometer.analysis.slo_result import Status

WORST: tuple[Status, ...] = ("missed", "undecided", "met")
"""The outcomes of objectives, the worst first."""


class LevelCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of all rounds, and the tokens of those that succeeded."""

    ok: int
    failed: int
    by_failure: dict[str, int] = {}
    input_tokens: float | None = None
    """Per request; null if they were not counted."""
    output_tokens: float | None = None
    input_counted_by: tuple[str, ...] = ()
    output_counted_by: tuple[str, ...] = ()


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. Over several rounds, each is the mean of the rounds."""

    count: int
    """Values in all rounds."""
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    ci: dict[str, Interval] = {}
    """95 % confidence intervals."""
    unsupported: tuple[str, ...] = ()
    """Percentiles of too few values."""


class LevelThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rates per second; null if they are not known."""

    requests: Estimate | None = None
    output_tokens: Estimate | None = None
    input_tokens: Estimate | None = None
    total_tokens: Estimate | None = None
    sequences: Estimate | None = None
    """Encoders: the batch size times the calls per second."""
    reason: str = ""
    """Why there are no rates."""


class LevelResources(msgspec.Struct, frozen=True, kw_only=True):
    """What the level took of the machine: means over the rounds, and the highest peak. Null for what was not observed."""

    cpu: float | None = None
    """Mean number of cores that the engine's processes kept busy."""
    memory: float | None = None
    """Peak resident memory of the engine's processes, in bytes; what they share counts for each of them."""
    gpu_memory: float | None = None
    """Peak of the memory in use of all GPUs together, in bytes."""
    gpu_use: float | None = None
    """Mean share of the time in which a kernel ran, over the GPUs that worked."""
    power: float | None = None
    """Mean of all GPUs together, in W."""


class LevelSlo(msgspec.Struct, frozen=True):
    """An objective at this level: met only if it is in every round, missed if it is in one."""

    slo: str
    status: Status
    reason: str
    value: float | None = None


class EngineLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One level of one engine. Figures that are not known are null."""

    by: str
    """concurrency, batch or rate."""
    level: float
    name: str
    length: int | None = None
    """Encoders: the sequence length in tokens."""
    repeats: int
    """Rounds that count: those in which its run is valid, or all if it is valid in none."""
    left_out: int = 0
    """Rounds that do not count, because the run is not valid or is missing."""
    valid: bool
    """Whether every round that counts is valid, and none is missing."""
    quotable: dict[str, bool] = {}
    """Whether its latencies and its throughput may be quoted: no check that concerns them failed in any round."""
    overloaded: bool = False
    problems: tuple[str, ...] = ()
    """Why it is not valid, or why a round does not count."""
    failed_checks: tuple[str, ...] = ()
    """Names of the checks that failed in the rounds that count."""
    runs: tuple[str, ...] = ()
    """Names of the runs' folders."""
    counts: LevelCounts | None = None
    ttft: Latency | None = None
    tpot: Latency | None = None
    e2e: Latency | None = None
    throughput: LevelThroughput = LevelThroughput()
    scaling: Estimate | None = None
    """Output tokens per second (requests, if there are no tokens) over those of the engine's lowest level, divided by the ratio of the
    levels."""
    resources: LevelResources | None = None
    energy_per_token: float | None = None
    """Joules of all GPUs per output token."""
    cost_per_million: Estimate | None = None
    """Of output tokens."""
    output_tokens_per_gpu: Estimate | None = None
    output_tokens_per_user: Estimate | None = None
    mfu: float | None = None
    """Model FLOPs utilisation, 0 to 1."""
    mbu: float | None = None
    """Memory-bandwidth utilisation while decoding, 0 to 1."""
    slos: tuple[LevelSlo, ...] = ()
    goodput: Estimate | None = None
    """Requests per second that met every limit for a single request."""
    padding: float | None = None
    """Share of the processed tokens that was padding."""
    cache: str = ""

    @property
    def outcome(self) -> str:
        """The worst status of the objectives; empty if there are none."""
        return next((status for status in WORST if any(each.status == status for each in self.slos)), "")
