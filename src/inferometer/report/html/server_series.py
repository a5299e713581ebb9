"""Curves from what observers recorded: the server's gauges, the machine's CPU, the client's processes, GPU power."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import settings
from inferometer.analysis.client_samples import by_shard
from inferometer.records import Run
from inferometer.series import TimeSeries
from inferometer.server_metrics.targets import Target, offering, targets, union
from inferometer.server_metrics.vocabulary import QUANTITIES
from inferometer.units import NS

_MOST = 600
"""Points of a curve at most."""
_GPUS = 8

Floats = NDArray[np.float64]


class Curve(NamedTuple):
    name: str
    seconds: list[float]
    values: list[float]
    is_step: bool = False
    """Each value holds until the next one."""


def gauge_curves(run: Run, series: Sequence[TimeSeries], names: Sequence[str]) -> dict[str, Curve]:
    """The server's gauges of these names at its scrapes: sums or means over all label sets and targets."""
    model = str(settings.text(run.manifest, "server", "model") or "")
    found = targets(series, model)
    curves = {}
    for name in names:
        offers = [target for target in offering(found, name) if not target.is_several]
        if offers and (curve := _gauge(name, offers)):
            curves[name] = curve
    return curves


def _gauge(name: str, offers: Sequence[Target]) -> Curve | None:
    at = union(target.scraped[target.succeeded] for target in offers)
    at = at[at >= 0]
    if not len(at):
        return None
    values = np.array([track.held(at) for target in offers for track in target.quantities[name]])
    known = ~np.isnan(values)
    total, count = np.where(known, values, 0.0).sum(axis=0), known.sum(axis=0)
    level = total if QUANTITIES[name].is_additive else total / np.maximum(count, 1)
    return _thinned(name.replace("_", " "), at[count > 0], level[count > 0], is_step=True)


def machine_curves(run: Run, series: Sequence[TimeSeries]) -> dict[str, list[Curve]]:
    """`cpu`: shares of this machine's cores and of one core by the busiest client process; `power`: of each GPU in W."""
    by_name = {(each.source, each.name): each for each in series}
    found: dict[str, list[Curve]] = {}
    cpu = []
    if ("host", "cpu_busy") in by_name and ("host", "cpu_idle") in by_name:
        cpu += _host_cpu(by_name["host", "cpu_busy"], by_name["host", "cpu_idle"])
    cpu += _client_cpu(run)
    if cpu:
        found["cpu"] = cpu
    power = [each for each in series if each.source == "nvml" and each.name == "gpu_power"][:_GPUS]
    if curves := [_of(each, f"GPU {each.labels.get('gpu', '')}") for each in power]:
        found["power"] = curves
    return found


def _of(each: TimeSeries, name: str) -> Curve:
    inside = each.at >= 0
    return _thinned(name, each.at[inside], each.value[inside])


def _host_cpu(busy: TimeSeries, idle: TimeSeries) -> list[Curve]:
    """The share of all cores that was busy between two samples, at the later one."""
    if len(busy.at) < 2 or len(busy.at) != len(idle.at):
        return []
    grown = np.diff(busy.value), np.diff(idle.value)
    total = grown[0] + grown[1]
    usable = (total > 0) & (busy.at[1:] >= 0)
    return [
        _thinned("all cores of this machine", busy.at[1:][usable], (grown[0] / np.where(total > 0, total, 1))[usable])
    ]


def _client_cpu(run: Run) -> list[Curve]:
    """The CPU time of the client process that used most of it, as a share of one core."""
    shards = by_shard(run.records.samples)
    if not shards:
        return []
    number = max(shards, key=lambda shard: (sum(sample.cpu for sample in shards[shard]), -shard))
    own = shards[number]
    name = "busiest client process, of one core" if len(shards) > 1 else "client process, of one core"
    return [_thinned(name, np.array([each.at for each in own]), np.array([each.cpu for each in own]))]


def _thinned(name: str, at: NDArray[np.int64], values: Floats, is_step: bool = False) -> Curve:
    """The curve with at most _MOST points: means of consecutive values."""
    known = np.isfinite(values)
    at, values = at[known], values[known]
    if len(at) > _MOST:
        edges = np.linspace(0, len(at), _MOST + 1).astype(np.int64).tolist()
        pairs = [(begin, end) for begin, end in pairwise(edges) if end > begin]
        values = np.array([values[begin:end].mean() for begin, end in pairs])
        at = np.array([at[begin] for begin, _ in pairs])
    return Curve(name, (at / NS).tolist(), values.tolist(), is_step)
