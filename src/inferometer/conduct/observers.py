"""What is observed beside a run, and where that is stored."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from inferometer.config.schema import Config
from inferometer.config.secret import hide
from inferometer.observe.observer import Observer
from inferometer.observe.statistics import StatisticsWatch
from inferometer.probe import reach
from inferometer.records import Manifest
from inferometer.series import SeriesRow, group
from inferometer.store.folder import SERIES

_STATISTICS_TIMEOUT = 2.0
"""Seconds to connect for a server's statistics, and to wait for each piece of them."""


def observers_of(config: Config, reached: reach.Reached) -> dict[str, Observer]:
    """Make the observers that this run needs, by name."""
    return {name: observer for name, make in OBSERVERS.items() if (observer := make(config, reached))}


def _kserve_statistics(config: Config, reached: reach.Reached) -> Observer | None:
    """Make the observer that reads the statistics of a KServe server."""
    if reached.facts is None:
        return None
    peers, headers = reach.peers_of(config.server, reached)
    limits = {"connect_timeout": _STATISTICS_TIMEOUT, "timeout": _STATISTICS_TIMEOUT}
    peers = [msgspec.structs.replace(peer, **limits) for peer in peers]
    return StatisticsWatch(peers, headers, reached.model, config.server.version or "")


OBSERVERS: dict[str, Callable[[Config, reach.Reached], Observer | None]] = {"kserve": _kserve_statistics}
"""What makes an observer for a run, or None when there is nothing to observe. A new observer is one row."""


def with_observations(
    head: Manifest, observers: dict[str, Observer], errors: dict[str, str], secrets: tuple[str, ...]
) -> Manifest:
    """Add the statistics of each stage to the manifest, and why observers failed."""
    head = msgspec.structs.replace(head, observer_errors={name: hide(why, secrets) for name, why in errors.items()})
    watch = observers.get("kserve")
    if not isinstance(watch, StatisticsWatch):
        return head
    statistics, reasons = watch.by_stage(None if head.outcome.interrupted else len(head.plan))
    hidden_reasons = tuple(hide(why, secrets) for why in reasons)
    return msgspec.structs.replace(head, statistics=statistics, no_statistics=hidden_reasons)


def spool_series(folder: Path, rows: tuple[SeriesRow, ...], t0: int) -> None:
    """Keep what observers recorded with the records, for the case that the run cannot be stored now."""
    from inferometer.store import series as series_file  # noqa: PLC0415 - it imports pyarrow

    with contextlib.suppress(OSError):  # the disk is full: the records matter more
        series_file.write(folder / SERIES, group(row._replace(at=row.at - t0) for row in rows))
