"""The answer: the interval, what limits the server, and the probes that show it."""

import math
from typing import Any, Literal

import msgspec

from inferometer import __version__
from inferometer.analysis.slo import SloResult
from inferometer.capacity.search import Bracket, Purpose, Status

By = Literal["rate", "concurrency", "users"]
SCHEMA = 1
"""Version of the layout of `as_json` (docs/reference/json.md)."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One probe: a short run at one level."""

    level: float
    purpose: Purpose
    status: Status
    seconds: float
    """How long it took, with its start and the wait for its last responses."""
    requests: int
    """How many requests were judged."""
    throughput: float | None
    """Requests completed per second."""
    mean_e2e: float | None
    """Mean end-to-end time in seconds."""
    slos: tuple[SloResult, ...]
    overloaded: bool = False
    folder: str = ""
    """Where its records are."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    by: By
    bracket: Bracket
    limited_by: str | None
    """What fails first above `high`: `ttft.p90`. None if no level failed."""
    probes: tuple[Probe, ...]
    slos: tuple[str, ...]
    presets: tuple[str, ...] = ()
    percentile: str | None = None
    """At which the presets are judged; None: no preset was given."""
    budget: float
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

    @property
    def at_low(self) -> Probe | None:
        """The latest probe that holds at the lower end."""
        holding = [one for one in self.probes if one.level == self.bracket.low and one.status == "holds"]
        return holding[-1] if holding else None

    @property
    def people(self) -> int | None:
        """How many people the server holds who each think between messages: rate x (mean e2e + think time)."""
        probe, level = self.at_low, self.bracket.low
        if probe is None or level is None or probe.mean_e2e is None:
            return None
        if self.by == "users":
            return round(level)
        rate = level if self.by == "rate" else probe.throughput
        return None if rate is None else math.floor(rate * (probe.mean_e2e + self.think))


def as_json(found: Capacity, words: str) -> dict[str, Any]:
    """The layout of `--json`: `capacity.rate` has the interval, or `capacity.concurrency` or `capacity.users`."""
    ends = {"low": found.bracket.low, "high": found.bracket.high, "estimate": found.bracket.estimate}
    rest = msgspec.to_builtins(found)
    for name in ("by", "bracket"):
        del rest[name]
    rates = {}
    if found.by != "rate":
        ends_rate = found.at_low.throughput if found.at_low is not None else None
        rates = {"rate": {"low": ends_rate, "high": None, "estimate": None}}
    return {
        "schema": SCHEMA,
        "inferometer": __version__,
        "capacity": {
            found.by: ends,
            **rates,
            "unit": found.by,
            "confirmed": found.bracket.confirmed,
            "non_monotone": found.bracket.non_monotone,
            "people": found.people,
            "words": words,
            **rest,
        },
    }
