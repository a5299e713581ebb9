"""The figures of each traffic class and of each replica, computed as those of the whole run are.

A replica is an address that requests were sent to. If several URLs have the same address, as behind one ingress, each URL at that
address is a replica. Requests that were never sent belong to none.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import slo, slo_result, throughput
from inferometer.analysis.checks.evidence import StageEvidence
from inferometer.analysis.counts import Counts, count
from inferometer.analysis.distributions import NO_GAPS, distributions, itl_by_stage
from inferometer.analysis.gaps import gather
from inferometer.analysis.overload import Overload
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.slo import Goodput
from inferometer.analysis.slo_expression import Slo, parse_all
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.throughput import Spans, Throughput
from inferometer.analysis.window import STEADY
from inferometer.records import NAMES, Columns, Run, class_settings

Mask = NDArray[np.bool_]


class Group(msgspec.Struct, frozen=True):
    """One traffic class or one replica."""

    name: str
    counts: Counts
    throughput: Throughput
    """Its part of the rates: those of all groups add up to those of the run."""
    metrics: dict[str, Distribution]
    """Empty if stages have different loads, and in stages that are overloaded. `itl` is computed for the classes of a stage only."""
    slos: tuple[SloResult, ...] = ()
    """A class's own objectives."""
    goodput: Goodput | None = None


class Groups(msgspec.Struct, frozen=True):
    """The groups of a run, and those of each of its stages."""

    whole: tuple[Group, ...] = ()
    stages: tuple[tuple[Group, ...], ...] = ()


class _Selection(msgspec.Struct, frozen=True):
    name: str
    rows: NDArray[np.int64]
    """Indices of its rows."""
    objectives: tuple[Slo, ...] = ()


def by_class(run: Run, spans: Spans, overloads: Sequence[Overload], as_inf: bool, own_slos: bool = True) -> Groups:
    """The figures of each traffic class, with its own objectives if `own_slos`; nothing if there are no classes."""
    names = run.records.classes
    if not names:
        return Groups()
    settings = class_settings(run.manifest)
    column, stages = run.records.rows["class"], run.records.rows["stage"]
    chosen = [
        _Selection(name, np.flatnonzero(column == index), _objectives(settings[index], index) if own_slos else ())
        for index, name in enumerate(names)
    ]
    count = len(run.manifest.plan)
    good = (run.records.phase == STEADY) & (run.records.rows["failure"] == 0)
    itl = itl_by_stage(run, gather(run, good, column * np.int32(count) + stages))
    return _figures(run, chosen, spans, overloads, as_inf, itl)


def _objectives(settings: dict[str, object], index: int) -> tuple[Slo, ...]:
    slos = settings.get("slo") or []
    texts = slos if isinstance(slos, list | tuple) else [slos]
    return parse_all([str(text) for text in texts], f"data.classes.{index}.slo")


def by_replica(run: Run, spans: Spans, overloads: Sequence[Overload], as_inf: bool) -> Groups:
    """The figures of each replica; nothing if there is only one."""
    replica, url = run.records.rows["replica"], run.records.rows["url"]
    sent = np.flatnonzero(replica >= 0)
    width = int(url.max(initial=0)) + 1
    pairs, group = np.unique(replica[sent].astype(np.int64) * width + url[sent], return_inverse=True)
    if len(pairs) < 2:
        return Groups()
    names = _replica_names(run, [divmod(pair, width) for pair in pairs.tolist()])
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=len(pairs)))
    parts = np.split(sent[order], ends[:-1])
    chosen = [_Selection(name, rows) for name, rows in zip(names, parts, strict=True)]
    return _figures(run, sorted(chosen, key=lambda each: each.name), spans, overloads, as_inf, {})


def _replica_names(run: Run, pairs: list[tuple[int, int]]) -> list[str]:
    """The addresses; with the URL for addresses that several URLs have."""
    shared = {replica for replica, same in groupby(pairs, lambda pair: pair[0]) if len(list(same)) > 1}
    server = run.manifest.config.get("server")
    urls = server.get("url") if isinstance(server, dict) else None
    shown = [str(url) for url in urls] if isinstance(urls, list | tuple) else []
    addresses = run.records.replicas
    return [
        f"{shown[url] if url < len(shown) else f'URL {url}'} at {addresses[replica]}"
        if replica in shared
        else addresses[replica]
        for replica, url in pairs
    ]


# --- the figures -----------------------------------------------------------------------------------------------------


def _figures(
    run: Run,
    chosen: Sequence[_Selection],
    spans: Spans,
    overloads: Sequence[Overload],
    as_inf: bool,
    itl: dict[int, Distribution],
) -> Groups:
    """`itl` has the gaps of group g in stage s under g * (number of stages) + s."""
    count = len(overloads)
    by_group = []
    for index, each in enumerate(chosen):
        own = _part(run, each.rows)
        rates = throughput.rates(own, spans.part(each.rows))
        gaps = [itl.get(index * count + stage, NO_GAPS) for stage in range(count)]
        by_group.append(
            [_stage(own, each, stage, rates[stage][1], gaps[stage], overloads[stage], as_inf) for stage in range(count)]
        )
    stages = tuple(zip(*by_group, strict=True))
    if count == 1:
        return Groups(stages[0], stages)
    return Groups(tuple(_whole(run, *pair, spans) for pair in zip(chosen, by_group, strict=True)), stages)


def _part(run: Run, index: NDArray[np.int64]) -> Run:
    """A run with only these rows, copied: its columns are read many times."""
    rows = run.records.rows
    own = Columns(len(index), {name: rows[name][index] for name in NAMES})
    records = msgspec.structs.replace(run.records, rows=own, phase=run.records.phase[index])
    return msgspec.structs.replace(run, records=records)


def _stage(
    run: Run,
    selection: _Selection,
    stage: int,
    rates: Throughput,
    itl: Distribution,
    overload: Overload,
    as_inf: bool,
) -> Group:
    mask: Mask = run.records.rows["stage"] == stage
    metrics = distributions(run, mask, itl, as_inf)
    evidence = StageEvidence(
        stage, "", mask & (run.records.phase == STEADY), metrics, np.zeros(0, np.uint32), rates, overload
    )
    slos = tuple(
        msgspec.structs.replace(result, slo=f"{selection.name}: {result.slo}", class_=selection.name)
        for result in slo.judge(run, evidence, selection.objectives)
    )
    goodput = slo.goodput(run, evidence, selection.objectives) if selection.objectives else None
    shown = {} if overload.status == "overloaded" else metrics
    return Group(selection.name, count(run, mask), rates, shown, slos, goodput)


def _whole(run: Run, selection: _Selection, stages: Sequence[Group], spans: Spans) -> Group:
    """The figures of a group over several stages, which may have different loads: no latencies."""
    _, rates = throughput.together(
        [(window, stage.throughput) for window, stage in zip(spans.windows, stages, strict=True)]
    )
    mask = np.zeros(len(run.records.rows), np.bool_)
    mask[selection.rows] = True
    slos = slo_result.together([(number, stage.slos) for number, stage in enumerate(stages)])
    return Group(selection.name, count(run, mask), rates, {}, slos)
