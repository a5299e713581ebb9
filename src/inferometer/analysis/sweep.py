"""A sweep: the same measurement at several loads, and for several values of other settings."""

from typing import Any, Literal

import msgspec

from inferometer import __version__
from inferometer.analysis.counts import Counts
from inferometer.analysis.efficiency import Efficiency
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.slo import Goodput, SloResult
from inferometer.analysis.throughput import Throughput


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One measured level: a stage of a run."""

    run: str
    """Name of the run's folder."""
    stage: int
    name: str
    settings: dict[str, Any]
    """The values of the grid's keys, such as {"data.input": 1024}."""
    by: Literal["rate", "concurrency", ""]
    """What the level is; empty if the load has none, such as a trace."""
    level: float | None
    is_quotable: bool
    """Whether no check that concerns its latencies or rates failed."""
    is_overloaded: bool
    counts: Counts
    throughput: Throughput
    metrics: dict[str, Distribution]
    slos: tuple[SloResult, ...] = ()
    goodput: Goodput | None = None
    efficiency: Efficiency | None = None


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where the curve of one combination of settings bends: above this level, latency grows and throughput does not."""

    settings: dict[str, Any]
    by: Literal["rate", "concurrency"]
    level: float
    throughput: float
    """Completed requests per second at that level."""
    reason: str
    """In words: what happens above it."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of a sweep's JSON."""

    schema: int = 1
    inferometer: str = __version__
    folder: str
    keys: tuple[str, ...]
    """The keys of the grid, in the order of the config; empty if only the load changes."""
    points: tuple[Point, ...]
    knees: tuple[Knee, ...] = ()
