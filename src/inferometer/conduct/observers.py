"""What is observed beside a run, and where that is stored."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from inferometer.config.secret import hide
from inferometer.fleet.job import Job
from inferometer.observe import metrics_endpoints
from inferometer.observe.observer import Observer, Observers
from inferometer.observe.scrape import Scrape
from inferometer.observe.statistics import StatisticsWatch
from inferometer.probe import reach
from inferometer.records import Manifest
from inferometer.series import SeriesRow, group
from inferometer.store.folder import SERIES

_STATISTICS_TIMEOUT = 2.0
"""Seconds to connect for a server's statistics, and to wait for each piece of them."""


def observers_of(job: Job) -> dict[str, Observer]:
    """Make the observers that this run needs, by name. Raises UserError when the config asks for one that cannot be made."""
    return {name: observer for make in OBSERVERS for name, observer in make(job).items()}


def _kserve_statistics(job: Job) -> Mapping[str, Observer]:
    """Make the observer that reads the statistics of a KServe server."""
    config, reached = job.config, job.reached
    if reached.facts is None:
        return {}
    peers, headers = reach.peers_of(config.server, reached)
    limits = {"connect_timeout": _STATISTICS_TIMEOUT, "timeout": _STATISTICS_TIMEOUT}
    peers = [msgspec.structs.replace(peer, **limits) for peer in peers]
    return {"kserve": StatisticsWatch(peers, headers, reached.model, config.server.version or "")}


def _scrapes(job: Job) -> Mapping[str, Observer]:
    """Make an observer for each Prometheus endpoint."""
    config, reached = job.config, job.reached
    urls = config.observe.prometheus
    if urls == "auto":
        endpoints = metrics_endpoints.offered(config.server, reached)
    else:
        endpoints = metrics_endpoints.given(urls, config.server, reached)
    return {endpoint.url: Scrape(endpoint, float(config.observe.interval), reached.model) for endpoint in endpoints}


def _promql(job: Job) -> Mapping[str, Observer]:
    """Make the observer that reads from a Prometheus server."""
    return {}


def _resources(job: Job) -> Mapping[str, Observer]:
    """Make the observers of this machine, of processes and of GPUs."""
    return {}


def _live_metrics(job: Job) -> Mapping[str, Observer]:
    """Make the live Prometheus endpoint."""
    return {}


def _otlp(job: Job) -> Mapping[str, Observer]:
    """Make the sender of metrics and spans."""
    return {}


OBSERVERS: tuple[Callable[[Job], Mapping[str, Observer]], ...] = (
    _kserve_statistics,
    _scrapes,
    _promql,
    _resources,
    _live_metrics,
    _otlp,
)
"""What makes the observers of a run, by name; none if there is nothing to observe."""


def with_observations(
    head: Manifest, observers: Mapping[str, Observer], watching: Observers, secrets: tuple[str, ...]
) -> Manifest:
    """Add the statistics of each stage to the manifest, why observations are missing, and what observing has cost."""
    errors = {hide(name, secrets): hide(why, secrets) for name, why in watching.errors.items()}
    head = msgspec.structs.replace(head, observer_errors=errors, observer_cpu=watching.cpu_seconds)
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
