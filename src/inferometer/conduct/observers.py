"""What is observed beside a run, and where that is stored."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from inferometer.config.observe import Observe
from inferometer.config.secret import hidden, observe_words
from inferometer.errors import UserError
from inferometer.observe import gpu, metrics_endpoints, process_names
from inferometer.observe.host import HostWatch
from inferometer.observe.observer import Observer, Observers
from inferometer.observe.processes import ProcessWatch
from inferometer.observe.prometheus_api import PrometheusApi
from inferometer.observe.promql import PromQLQuery
from inferometer.observe.scrape import Scrape
from inferometer.observe.statistics import StatisticsWatch
from inferometer.prepare.setup import Setup
from inferometer.printable import hide
from inferometer.probe import reach
from inferometer.records import Manifest
from inferometer.series import TimeSeries
from inferometer.server_metrics import families
from inferometer.store.folder import SERIES

LIVE_METRICS = "live metrics"
"""Name of the observer that is the live Prometheus endpoint."""
_STATISTICS_TIMEOUT = 2.0
"""Seconds to connect for a server's statistics, and to wait for each piece of them."""


def observers_of(setup: Setup) -> dict[str, Observer]:
    """Make the observers that this run needs, by name. Raises UserError when the config asks for one that cannot be made."""
    made: dict[str, Observer] = {}
    try:
        for make in OBSERVERS:
            if make not in _OF_SERVER or setup.part is None or setup.part.number == 0:
                made |= make(setup)
    except BaseException:
        for observer in made.values():
            observer.close()
        raise
    return made


def _kserve_statistics(setup: Setup) -> Mapping[str, Observer]:
    """Make the observer that reads the statistics of a KServe server."""
    config, reached = setup.config, setup.reached
    if reached.facts is None:
        return {}
    peers, headers = reach.peers_of(config.server, reached)
    limits = {"connect_timeout": _STATISTICS_TIMEOUT, "timeout": _STATISTICS_TIMEOUT}
    peers = [msgspec.structs.replace(peer, **limits) for peer in peers]
    return {"kserve": StatisticsWatch(peers, headers, reached.model, config.server.version or "")}


def _scrapes(setup: Setup) -> Mapping[str, Observer]:
    """Make an observer for each Prometheus endpoint."""
    config, reached = setup.config, setup.reached
    urls = config.observe.prometheus
    without: list[str] = []
    if urls == "auto":
        if config.observe.promql is not None:  # it has the same metrics, which must not count twice
            return {}
        endpoints, without = metrics_endpoints.offered(config.server, reached)
    else:
        endpoints = metrics_endpoints.given(urls, config.server, reached)
    interval = float(config.observe.interval)
    made: dict[str, Observer] = {each.url: Scrape(each, interval, reached.model) for each in endpoints}
    return made | ({"prometheus": metrics_endpoints.LeftOut(without)} if made and without else {})


def _promql(setup: Setup) -> Mapping[str, Observer]:
    """Make the observer that reads from a Prometheus server."""
    settings = setup.config.observe.promql
    if settings is None:
        return {}
    token = reach.secret_from(settings.token_env, settings.token_file, "token", "observe.promql.token")
    secrets = ((token,) if token else ()) + observe_words(setup.config)
    with hidden(secrets):
        headers = settings.headers | ({"Authorization": f"Bearer {token}"} if token else {})
        api = PrometheusApi(settings.url, headers, secrets)
        observer = PromQLQuery(api, settings, families.name_pattern(), float(setup.config.observe.interval))
        observer.check()
    return {"promql": observer}


def _resources(setup: Setup) -> Mapping[str, Observer]:
    return resource_observers(setup.config.observe)


def resource_observers(observe: Observe) -> dict[str, Observer]:
    """Make the observers of this machine, of processes and of GPUs."""
    interval = float(observe.interval)
    made: dict[str, Observer] = {"host": HostWatch(interval)} if observe.host else {}
    if observe.processes:
        made["processes"] = ProcessWatch(process_names.find(observe.processes), interval)
    if (nvml := gpu.open_nvml(observe.gpu)) is not None:
        made["gpu"] = gpu.GpuWatch(nvml, interval)
    return made


def _live_metrics(setup: Setup) -> Mapping[str, Observer]:
    """Make the live Prometheus endpoint."""
    port = setup.config.export.metrics_port
    if port is None:
        return {}
    from inferometer.conduct.live_families import live_families  # noqa: PLC0415 - few runs need it
    from inferometer.publish.endpoint import LiveEndpoint  # noqa: PLC0415

    return {LIVE_METRICS: LiveEndpoint(live_families(setup), port, setup.config.export.metrics_host)}


def live_url(observers: Mapping[str, Observer]) -> str:
    """Return the URL of the live Prometheus endpoint; empty if there is none."""
    return str(getattr(observers.get(LIVE_METRICS), "url", ""))


def warnings_at_start(setup: Setup, observers: Mapping[str, Observer], secrets: tuple[str, ...]) -> list[str]:
    """Return what cannot be reached of what the config names. The run goes on: it may be there later."""
    is_named = setup.config.observe.prometheus != "auto"
    return [
        hide(observer.warning, secrets)
        for observer in observers.values()
        if observer.warning and (is_named or not isinstance(observer, Scrape))
    ]


def _otlp(setup: Setup) -> Mapping[str, Observer]:
    """Make the sender of metrics and spans."""
    if setup.config.export.otlp is None:
        return {}
    try:
        from inferometer.conduct.otlp import otlp_export  # noqa: PLC0415 - it needs an extra
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise UserError(
            "sending to OpenTelemetry needs a package that is not installed",
            "pip install 'inferometer[otlp]'",
            "export.otlp",
        ) from None
    return {"otlp": otlp_export(setup, setup.config.export.otlp)}


OBSERVERS: tuple[Callable[[Setup], Mapping[str, Observer]], ...] = (
    _kserve_statistics,
    _scrapes,
    _promql,
    _resources,
    _live_metrics,
    _otlp,
)
"""What makes the observers of a run, by name; none if there is nothing to observe."""

_OF_SERVER = (_kserve_statistics, _scrapes, _promql)
"""Those that read from the server, which is the same for all parts of a run: only part 0 has them, so that a hundred parts do not scrape it
a hundred times per second."""


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


def spool_series(folder: Path, series: tuple[TimeSeries, ...], t0: int, secrets: tuple[str, ...]) -> None:
    """Keep what observers recorded with the records, for the case that the run cannot be stored now."""

    def stored(one: TimeSeries) -> TimeSeries:
        labels = {name: hide(value, secrets) for name, value in one.labels.items()}
        return msgspec.structs.replace(one, at=one.at - t0, labels=labels)

    from inferometer.store import series as series_file  # noqa: PLC0415 - it imports pyarrow

    with contextlib.suppress(OSError):  # the disk is full: the records matter more
        series_file.write(folder / SERIES, [stored(one) for one in series])
