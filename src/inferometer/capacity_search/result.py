"""The answer: the interval, what limits the server, and the probes that show it. `as_json` and `from_json` store it."""

import math
from typing import Any, Literal

import msgspec

from inferometer import __version__
from inferometer.analysis.slo_result import SloResult
from inferometer.capacity_search.trials import Basis, Bracket, By, Purpose, Status
from inferometer.records import Manifest

SCHEMA = 2
"""Version of the layout of `as_json` (docs/reference/json.md)."""
Outcome = Literal["met", "missed", "undecided"]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a latency in seconds. None: it was not measured, or it is infinite because too many requests failed."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    unsupported: tuple[str, ...] = ()
    """The percentiles for which the probe has too few values."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One probe: a short run at one level."""

    level: float
    """In the unit of the search; of a probe that explores, the number of requests in flight."""
    purpose: Purpose
    status: Status
    is_sure: bool = True
    """Whether the status has 95 % confidence; otherwise it is likely."""
    is_warming: bool = False
    """The server was still warming up: the first requests took much longer than the last."""
    is_growing: bool = False
    """The number in flight grew, but few requests violated an objective yet."""
    seconds: float
    """How long it took, with its start and the wait for its last responses."""
    requests: int
    """How many requests were judged."""
    throughput: float | None
    """Requests completed per second, responses in progress with their part."""
    mean_e2e: float | None
    """Mean end-to-end time in seconds."""
    slos: tuple[SloResult, ...]
    overloaded: bool = False
    folder: str = ""
    """Where its records are."""
    failed: int = 0
    """How many of all requests failed or were dropped, without those that the client cancelled."""
    excess: float | None = None
    """The worst objective: the share of requests that violate it / the share that may. None: not known."""
    output_tokens: float | None = None
    """Tokens generated per second."""
    inferences: float | None = None
    """Inferences per second, of tensor endpoints."""
    at: float = 0.0
    """When it started, in seconds since the search began."""
    violations: dict[str, float] = {}
    """By objective: the share of requests that violate it, also in a probe that failed because the server was overloaded."""
    latencies: dict[str, Latency] = {}
    """By metric: those that the endpoint has, of ttft, itl, tpot, e2e, queue, compute, protocol and network."""
    low: float | None = None
    """The lower end of the interval after this probe. None: not known yet."""
    high: float | None = None
    """The upper end of the interval after this probe."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    by: By
    bracket: Bracket
    limited_by: str | None
    """What fails first above the interval: `ttft.p90`. None if no level failed."""
    probes: tuple[Probe, ...]
    slos: tuple[str, ...]
    presets: tuple[str, ...] = ()
    percentile: str | None = None
    """At which the presets are judged; None: no preset was given."""
    budget: float
    """Seconds that the search may take."""
    asked_budget: float | None = None
    """The budget before it was raised, because it could not suffice for responses that take this long. None: it was not."""
    seconds: float
    """How long the search took."""
    think: float
    """Seconds that a person takes between a response and the next message."""
    url: str
    model: str
    has_text: bool = True
    batch: int | None = None
    """Inferences per request, for tensor endpoints that report it."""
    interrupted: bool = False
    folder: str = ""
    at_least: float | None = None
    """The level that must hold; None: any."""
    strict: bool = False
    """Whether only ends that were shown with 95 % confidence count for the outcome; otherwise likely ones count, too."""
    ended_by: str = ""
    """Why the search ended early, such as a server that no longer responds; empty: it did not."""
    has_sessions: bool = False
    """Whether requests are turns of conversations."""

    @property
    def outcome(self) -> Outcome:
        """Whether the level that must hold, or any level, holds. Missed if it was seen to fail. Ends that no probe showed do not count."""
        if self.is_too_slow:
            return "missed"
        low, high = self.bracket.low, self.bracket.high
        counted = ("shown",) if self.strict else ("shown", "likely")
        if low is not None and low >= (self.at_least or 0.0) and self.bracket.low_basis in counted:
            return "met"
        is_missed = self.at_least and high and high <= self.at_least and self.bracket.high_basis in counted
        return "missed" if is_missed else "undecided"

    @property
    def is_too_slow(self) -> bool:
        """Whether one request at a time, or one user, violates an objective: no level holds."""
        return self.alone is not None

    @property
    def alone(self) -> Probe | None:
        """The probe of one request at a time, or one user, if that violates an objective."""
        if self.bracket.low is not None:
            return None
        lowest = [one for one in (*self.curve, *self.levels) if one.level <= 1 and not self._is_rate(one)]
        return next((one for one in lowest if (one.excess or 0.0) > 1), None)

    def _is_rate(self, probe: Probe) -> bool:
        return self.by == "rate" and probe.purpose != "explore"

    @property
    def has_limit(self) -> bool:
        """Whether any probe failed, or saw more violations than are allowed."""
        return any(probe.status == "fails" or (probe.excess or 0.0) > 1 for probe in self.probes)

    @property
    def at_low(self) -> Probe | None:
        """The latest probe that holds at the lower end, or closest above it."""
        low = self.bracket.low
        held = [one for one in self.levels if low is not None and one.status == "holds" and one.level >= low]
        return min(reversed(held), key=lambda one: one.level, default=None)

    @property
    def at_high(self) -> Probe | None:
        """The latest probe that fails at the upper end, or closest below it."""
        high = self.bracket.high
        failed = [one for one in self.levels if high is not None and one.status == "fails" and one.level <= high]
        return max(reversed(failed), key=lambda one: one.level, default=None)

    @property
    def levels(self) -> tuple[Probe, ...]:
        """The probes at levels of the kind that is raised."""
        return tuple(one for one in self.probes if one.purpose != "explore")

    @property
    def curve(self) -> tuple[Probe, ...]:
        """The closed loops that explore, by the number of requests in flight; of those that were repeated, the latest."""
        latest = {one.level: one for one in self.probes if one.purpose == "explore"}
        return tuple(latest[level] for level in sorted(latest))

    def level_of(self, probe: Probe) -> float | None:
        """The level of a probe; of one that explores, the level at which the server has as much to do. None: it is not known."""
        if probe.purpose != "explore" or self.by == "concurrency":
            return probe.level
        if not probe.throughput:
            return None
        return probe.throughput if self.by == "rate" else probe.level + probe.throughput * self.think

    @property
    def people(self) -> int | None:
        """How many people the server holds at the lower end who each think between messages: rate x (mean e2e + think time)."""
        return self.people_at(self.bracket.low)

    def people_at(self, level: float | None) -> int | None:
        if level is None:
            return None
        if self.by == "users":
            return round(level)
        mean_e2e = self.mean_e2e
        rate = level if self.by == "rate" else None if mean_e2e is None else level / mean_e2e
        return None if rate is None or mean_e2e is None else math.floor(rate * (mean_e2e + self.think))

    @property
    def mean_e2e(self) -> float | None:
        """Mean end-to-end time at the lower end, or at the highest level that was fine."""
        fine = [one for one in (*self.curve, *sorted(self.levels, key=lambda one: one.level)) if one.status == "holds"]
        probe = self.at_low or (fine[-1] if fine else None)
        return None if probe is None else probe.mean_e2e


def as_json(found: Capacity, words: str, manifest: Manifest | None = None) -> dict[str, Any]:
    """The layout of `--json`: `capacity.rate` has the interval, or `capacity.concurrency` or `capacity.users`.

    `manifest` is that of the last probe: the config, the server and the machine.
    """
    ends = {"low": found.bracket.low, "high": found.bracket.high, "estimate": found.bracket.estimate}
    basis = {"low": found.bracket.low_basis, "high": found.bracket.high_basis}
    rest = msgspec.to_builtins(found)
    for name in ("by", "bracket"):
        del rest[name]
    rates = {}
    if found.by != "rate":
        ends_rate = found.at_low.throughput if found.at_low is not None else None
        rates = {"rate": {"low": ends_rate, "high": None, "estimate": None}}
    answer = {
        found.by: ends,
        **rates,
        "unit": found.by,
        "basis": basis,
        "confirmed": found.bracket.confirmed,
        "non_monotone": found.bracket.non_monotone,
        "people": found.people,
        "words": words,
        **rest,
    }
    tree = {"schema": SCHEMA, "inferometer": __version__, "capacity": answer}
    return tree | ({} if manifest is None else {"manifest": msgspec.to_builtins(manifest)})


def from_json(tree: dict[str, Any]) -> tuple[Capacity, Manifest | None]:
    """What `as_json` was given. Raises ValueError, KeyError or TypeError when it is something else."""
    if tree["schema"] != SCHEMA:
        raise ValueError(f"its layout has version {tree['schema']}, and this inferometer reads version {SCHEMA}")
    answer = tree["capacity"]
    ends = answer[answer["unit"]]
    basis: dict[str, Basis] = answer["basis"]
    found = Bracket(
        ends["low"],
        ends["high"],
        ends["estimate"],
        basis["low"],
        basis["high"],
        answer["confirmed"],
        answer["non_monotone"],
    )
    capacity = msgspec.convert(answer | {"by": answer["unit"], "bracket": msgspec.to_builtins(found)}, Capacity)
    return capacity, msgspec.convert(tree["manifest"], Manifest) if "manifest" in tree else None
