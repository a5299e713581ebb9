"""The scraped series of a run, sorted by target and quantity.

What a target offers is decided by the whole run, so that every window counts the same metrics: of the names of a quantity the first one
in the table (families.py), and of the label sets only those of the measured model, if any on the page are labelled with it.

Two targets are one server, and count once, if they report the same start of their process, to the fraction of a second, and have the
same known series. This happens if a server is reached under two addresses, or is scraped and also read from a Prometheus server.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.series import TimeSeries
from inferometer.server_metrics import families
from inferometer.server_metrics.families import SERVERS, Part, Source
from inferometer.server_metrics.vocabulary import QUANTITIES

Instants = NDArray[np.int64]
Values = NDArray[np.float64]

SOURCE = "prometheus"
"""The source of scraped samples in series.parquet. Their labels are those of the page and `target`, the endpoint's URL."""
UP = "up"
"""A series per target with a value at the time of each scrape: 1 if it succeeded, else 0. Other samples are stored only when their
value has changed, and hold until the next one: their value at a scrape is the latest one at or before it. NaN: the page did not have them
any more."""

STAGE = "scrape_stage"
"""A series per target with the number of each stage, at the time of the scrape that was made because the stage had begun."""


class Track(NamedTuple):
    """One series of a quantity, in our unit. NaN: no value."""

    part: Part
    le: float
    """The upper edge of a bucket; NaN for other parts."""
    at: Instants
    value: Values

    def held(self, instants: Instants) -> Values:
        """Return the values at these instants: each holds until the next one; NaN before the first."""
        index = np.searchsorted(self.at, instants, "right") - 1
        return np.where(index >= 0, self.value[np.maximum(index, 0)], np.nan)

    def counted(self) -> "Track":
        """Return the track of a counter without gaps: one that leaves the page has counted what it has counted."""
        known = ~np.isnan(self.value)
        return self._replace(at=self.at[known], value=self.value[known])


class Target(NamedTuple):
    """One endpoint."""

    url: str
    kind: str
    """A key of families.SERVERS."""
    scraped: Instants
    """When it was scraped, or should have been."""
    succeeded: NDArray[np.bool_]
    restarts: Instants
    """Scrapes at which the server reported another start of its process than before."""
    quantities: dict[str, tuple[Track, ...]]
    marks: Instants
    """When buckets of histograms were stored. The first scrape is one of them, even if the page had no buckets yet."""
    is_several: bool = False
    """Several servers answer at this address in turn, so its counters jump."""


def targets(series: Iterable[TimeSeries], model: str) -> list[Target]:
    """Return the targets that have known metrics, in the order of their URLs."""
    by_url: dict[str, list[TimeSeries]] = {}
    for each in series:
        if each.source == SOURCE and len(each.at):
            by_url.setdefault(each.labels.get("target", ""), []).append(each)
    found: dict[object, Target] = {}
    for url in sorted(by_url):
        if target := _target(url, by_url[url], model):
            found.setdefault(_identity(by_url[url]) or url, target)
    return list(found.values())


def offering(found: Sequence[Target], quantity: str) -> list[Target]:
    """Return the targets from which a quantity is taken."""
    offers = [target for target in found if quantity in target.quantities]
    first = min((SERVERS[target.kind].precedence for target in offers), default=0)
    return [target for target in offers if SERVERS[target.kind].precedence == first]


def _target(url: str, own: Sequence[TimeSeries], model: str) -> Target | None:
    offers: dict[str, dict[int, list[tuple[Source, TimeSeries]]]] = {}
    chosen = families.of_model([each.labels for each in own if families.known(each.name)], model)
    for each in own:
        if not chosen(each.labels):
            continue
        for source in families.known(each.name) or ():
            if source.matches(each.labels):
                offers.setdefault(source.quantity, {}).setdefault(source.rank, []).append((source, each))
    quantities: dict[str, tuple[Track, ...]] = {}
    kinds: set[str] = set()
    for name, ranks in offers.items():
        for rank in sorted(ranks):
            tracks = tuple(track for source, each in ranks[rank] if (track := _track(source, each)) is not None)
            if tracks:
                quantities[name] = tracks
                kinds.add(ranks[rank][0][0].server)
                break
    if not quantities:
        return None
    scraped, succeeded = _scrapes(own)
    buckets = (track.at for tracks in quantities.values() for track in tracks if track.part == "bucket")
    marks = union([scraped[succeeded][:1], *buckets])
    kind = next(kind for kind in SERVERS if kind in kinds)
    return Target(url, kind, scraped, succeeded, _restarts(own), quantities, marks, _is_several(own, quantities))


def _track(source: Source, each: TimeSeries) -> Track | None:
    """A series in our unit; None if it never has a value."""
    value = each.value * source.row.scale if source.part in ("value", "sum") else each.value
    if QUANTITIES[source.quantity].unit == "share":
        value = np.where(value < 0, np.nan, value)  # vLLM's -1: there is no prefix cache
    if np.isnan(value).all():
        return None
    le = np.nan
    if source.part == "bucket":
        try:
            le = float(each.labels["le"]) * source.row.scale
        except (KeyError, ValueError):
            return None
    return Track(source.part, le, each.at, value)


def _scrapes(own: Sequence[TimeSeries]) -> tuple[Instants, NDArray[np.bool_]]:
    for each in own:
        if each.name == UP:
            return each.at, each.value > 0
    at = union(each.at for each in own)
    return at, np.ones(len(at), np.bool_)


def _restarts(own: Sequence[TimeSeries]) -> Instants:
    return union(at[1:][np.diff(value) != 0] for at, value in _process_starts(own))


def _is_several(own: Sequence[TimeSeries], quantities: Mapping[str, Sequence[Track]]) -> bool:
    """Whether several servers answer in turn, as behind a load balancer: the start of the process changes back to an earlier one, or a
    counter that fell jumps back to where it was, at least twice. After a restart it would have to grow there."""
    for _, value in _process_starts(own):
        seen = value[np.concatenate(([True], np.diff(value) != 0))]
        return len(set(seen.tolist())) < len(seen)
    counters = (track for name, tracks in quantities.items() for track in tracks if _is_counter(name, track))
    return any(_returns(track.value[~np.isnan(track.value)]) >= 2 for track in counters)


def _is_counter(name: str, track: Track) -> bool:
    return QUANTITIES[name].kind == "counter" or track.part == "count"


def _returns(value: Values) -> int:
    """How often a counter fell, and later rose in one step to at least what it was before."""
    fallen_from, returns = np.inf, 0
    for before, after in pairwise(value.tolist()):
        if after < before:
            fallen_from = before
        elif after >= fallen_from > before:
            returns, fallen_from = returns + 1, np.inf
    return returns


def _identity(own: Sequence[TimeSeries]) -> object:
    """What two targets that are one server have in common; None if the server does not say when it was started."""
    starts = [tuple(value.tolist()) for _, value in _process_starts(own)]
    names = frozenset((each.name, _labels(each)) for each in own if families.known(each.name))
    return (tuple(starts), names) if starts else None


def _process_starts(own: Sequence[TimeSeries]) -> Iterator[tuple[Instants, Values]]:
    for each in own:
        if each.name == families.PROCESS_START:
            known = ~np.isnan(each.value)
            yield each.at[known], each.value[known]


def _labels(each: TimeSeries) -> frozenset[tuple[str, str]]:
    return frozenset((label, value) for label, value in each.labels.items() if label not in _OF_THE_TARGET)


_OF_THE_TARGET = ("target", "instance", "job")
"""Labels that say how a server was reached; the last two are Prometheus's own."""


def union(instants: Iterable[Instants]) -> Instants:
    """All instants, ascending and without repetition. (np.unique would import numpy.ma, which a short run need not wait for.)"""
    return np.array(sorted({at for part in instants for at in part.tolist()}), np.int64)
