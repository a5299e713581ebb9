"""What the search asks for, and what it has seen: a goal, requests for trials, and trials.

A level is what the user raises: a rate, a number of requests in flight, or a number of users. Trials that explore are closed loops, and
their level is the number of requests in flight, whatever the user raises.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

By = Literal["rate", "concurrency", "users"]
Status = Literal["holds", "fails", "undecided"]
Purpose = Literal["explore", "narrow", "repeat", "confirm"]
Basis = Literal["shown", "likely", "estimated"]
"""What an end of the interval rests on: a probe with 95 % confidence, a probe with less, or the model of all probes."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for, and what is known before the first trial."""

    by: By = "rate"
    budget: float
    """Seconds, for all trials."""
    unloaded: float
    """Seconds that a request takes without load."""
    allowed: float = 0.1
    """The smallest share of requests that may violate an objective."""
    needed: float = 30.0
    """Independent requests, none of which violates anything, that show that a level holds."""
    slack: float = 1.0
    """Seconds that a request may wait beyond what it takes without load, by the tightest limit; inf if no limit is about waiting."""
    start: float | None = None
    """The first level to try after exploring. None: the level that will probably hold."""
    explore_from: int = 4
    """The first number of requests in flight: language models serve several at a time, most tensor models one."""
    think: float = 0.0
    """Seconds that a user takes between a response and the next request."""
    precision: float = 0.05
    """The search ends when `high` is at most this share above `low`."""
    overhead: float = 0.0
    """Seconds that a trial takes beyond its length: its start, and waiting for its last responses."""

    @property
    def whole(self) -> bool:
        """Whether levels are whole numbers."""
        return self.by != "rate"

    def level_of(self, rate: float, in_flight: float) -> float:
        """The level at which so many requests per second are served, with so many in flight on average."""
        return {"rate": rate, "concurrency": in_flight, "users": in_flight + rate * self.think}[self.by]

    def rounded(self, level: float) -> float:
        return float(max(round(level), 1)) if self.whole else float(f"{level:.4g}")


class Request(msgspec.Struct, frozen=True):
    """A trial that the search asks for."""

    level: float
    seconds: float
    """Its maximum length."""
    purpose: Purpose


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial showed."""

    level: float
    purpose: Purpose
    status: Status
    is_sure: bool = True
    """Whether the status has 95 % confidence; otherwise it is likely."""
    seconds: float
    """How long it took, with everything that belongs to it."""
    excess: float | None = None
    """The worst objective: the share of requests that violate it / the share that may, or value / limit. None: not known."""
    allowed: float | None = None
    """The share of requests that may violate that objective. None: it is not judged by counting requests."""
    independent: float | None = None
    """How many independent requests the trial is worth."""
    rate: float | None = None
    """Requests per second that the server served."""
    rate_error: float = 0.1
    """The relative error of `rate`."""
    mean_e2e: float | None = None
    """Mean end-to-end time in seconds."""
    residence: float | None = None
    """The same, weighted by itself: how long the requests take that are in flight at an instant. Long ones weigh more."""
    is_overloaded: bool = False
    """The number of requests in flight grew for as long as requests arrived, and too many violated an objective."""
    is_growing: bool = False
    """The number in flight grew, but few requests violated an objective yet."""
    is_warming: bool = False
    """Requests took much longer in the first part of the trial than in the last: the server was still warming up."""


class Bracket(msgspec.Struct, frozen=True):
    """The interval; None if nothing is known about that end."""

    low: float | None
    """The highest level that holds, or a little less if all probes together dispute it."""
    high: float | None
    """The lowest level above it that fails, or a little more if all probes together dispute it."""
    estimate: float | None
    low_basis: Basis = "shown"
    high_basis: Basis = "shown"
    confirmed: bool = False
    """A fresh trial at `low` held, too."""
    non_monotone: bool = False
    """A level held although a lower one failed, and the repetition did not resolve it."""


def explored(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.purpose == "explore"]


def probed(trials: Sequence[Trial]) -> list[Trial]:
    """The trials at levels of the kind that the user raises."""
    return [trial for trial in trials if trial.purpose != "explore"]
