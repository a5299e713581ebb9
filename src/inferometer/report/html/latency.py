"""How latencies are distributed: a CDF and a table of percentiles per metric, by stage and by traffic class."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import settings
from inferometer.analysis.distributions import counts_as_inf
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.summary import Summary
from inferometer.analysis.window import STEADY
from inferometer.records import Run
from inferometer.report import formatting, run_sections, tables
from inferometer.report.document import Block as AnyBlock
from inferometer.report.document import Section
from inferometer.report.html import page
from inferometer.report.html.gap_histogram import BINS, Counts, GapHistogram, TimeBins, count_gaps, middle
from inferometer.report.html.page import Block
from inferometer.report.html.parts import TITLES, Part, latencies, limits
from inferometer.report.latency import failures_note, percentiles

MILLION = 1_000_000
LEVELS = np.unique(
    np.concatenate(
        [
            [1],
            np.arange(5, 991, 5) * 1000,
            np.arange(9905, 9991, 5) * 100,
            np.arange(9991, 10000) * 100,
            [999_950, 999_990, MILLION],
        ]
    )
)
"""The levels at which a CDF is drawn, in millionths, so that ranks are computed in integers: close together in the tail."""
_MOST_STAGES = 8
"""With more stages, there is a choice for each class, with the stages as lines, instead of one for each stage."""


class Line(NamedTuple):
    """A CDF with its row of the table."""

    name: str
    values: list[float | None]
    """In ms, at the first of LEVELS."""
    found: Distribution | None
    is_overloaded: bool = False
    colour: int | None = None
    """None: the next one."""


_ONE_BIN = TimeBins(0, 1, 1)
"""For counts of gaps that need no time."""


def latency(run: Run, summary: Summary, stages: list[Part], gaps: GapHistogram) -> Section:
    """The section, with a switch for the metric and one for the grouping."""
    names = latencies(stages)
    groupings = _groupings(run, stages)
    panes: dict[str, Sequence[AnyBlock]] = {}
    for name in names:
        for key, (label, selections) in groupings.items():
            lines = [line for chosen in selections if (line := _line(run, gaps, name, chosen))]
            if not lines:
                panes[f"{name}|{key}"] = [page.note("There are no values for this choice.")]
                continue
            chart = cdf(name, lines, limits(summary, name))
            if key != "all":
                chart["title"] += f", {label}"
            panes[f"{name}|{key}"] = [chart, *_table(name, lines, tables.columns_of(run.manifest))]
    if not panes:
        return Section("latency", "Latency", [])
    switches = [
        [(name, TITLES[name]) for name in names],
        [(key, label) for key, (label, _) in groupings.items()],
    ]
    return Section(
        "latency",
        "Latency",
        [
            *run_sections.latencies(run, summary).blocks,
            page.tabs(switches, panes),
            *(page.note(each.remark) for each in stages if each.remark),
        ],
        "How long requests took. The curve says which share of them took at most that long: further left is faster, and a long flat top is a slow tail.",
    )


class _Selection(NamedTuple):
    name: str
    stage: int
    class_: int
    """-1: all."""
    metrics: dict[str, Distribution]
    is_overloaded: bool


def _groupings(run: Run, stages: list[Part]) -> dict[str, tuple[str, list[_Selection]]]:
    """Ways to divide the requests: by stage, and by class within each stage."""
    found = {
        "all": (
            "by stage" if len(stages) > 1 else "all requests",
            [_Selection(each.name, each.number, -1, each.metrics, each.is_overloaded) for each in stages],
        )
    }
    if run.records.classes and len(stages) <= _MOST_STAGES:
        for each in stages:
            label = f"classes at {each.name}" if len(stages) > 1 else "by class"
            found[f"s{each.number}"] = (
                label,
                [
                    _Selection(group.name, each.number, index, group.metrics, each.is_overloaded)
                    for index, group in enumerate(each.classes)
                ],
            )
    elif run.records.classes:
        for index, name in enumerate(run.records.classes):
            found[f"k{index}"] = (
                f"{formatting.one_line(name, 40)} by stage",
                [
                    _Selection(each.name, each.number, index, each.classes[index].metrics, each.is_overloaded)
                    for each in stages
                    if index < len(each.classes)
                ],
            )
    return found


def _line(run: Run, gaps: GapHistogram, name: str, chosen: _Selection) -> Line | None:
    found = chosen.metrics.get(name) if chosen.metrics else None
    values = from_histogram(_gaps_of(run, gaps, chosen)) if name == "itl" else _values_of(run, name, chosen)
    if not any(value is not None for value in values):
        return None
    return Line(chosen.name, values, found, chosen.is_overloaded)


def _gaps_of(run: Run, gaps: GapHistogram, chosen: _Selection) -> Counts:
    width = max(len(run.records.classes), 1)
    own = gaps.by_group[chosen.stage * width : (chosen.stage + 1) * width]
    counts: Counts = own.sum(axis=0) if chosen.class_ < 0 else own[chosen.class_]
    return counts


def _values_of(run: Run, name: str, chosen: _Selection) -> list[float | None]:
    """The latencies in ms at LEVELS; null for those of failed requests, if they count as infinitely slow."""
    return _together([_known(run, name, chosen.stage, chosen.class_)])


def pooled(runs: Sequence[Run], name: str, stage: int) -> list[float | None]:
    """The latencies of the same stage of several runs, in ms at LEVELS."""
    if name != "itl":
        return _together([_known(run, name, stage, -1) for run in runs])
    counts = np.zeros(BINS, np.int64)
    for run in runs:
        own = (run.records.phase == STEADY) & (run.records.rows["stage"] == stage)
        counts += count_gaps(run, _ONE_BIN, np.where(own, 0, -1), 1).by_group[0]
    return from_histogram(counts)


Known = tuple[NDArray[np.float64], int]


def _known(run: Run, name: str, stage: int, class_: int) -> Known:
    """The latencies in seconds, and how many failed requests count as infinitely slow."""
    rows = run.records.rows
    mask = (run.records.phase == STEADY) & (rows["stage"] == stage)
    if class_ >= 0:
        mask &= rows["class"] == class_
    compute = METRICS[name].values
    assert compute is not None
    values = compute(rows[mask & (rows["failure"] == 0)])
    values = values[~np.isnan(values)]
    infinite = 0
    if METRICS[name].can_fail and len(values) and settings.measure(run.manifest).failures_as_inf:
        infinite = int(np.count_nonzero(mask & counts_as_inf(run)))
    return values, infinite


def _together(each: Sequence[Known]) -> list[float | None]:
    values = np.sort(np.concatenate([known for known, _ in each]))
    infinite = sum(count for _, count in each)
    return _at_levels(len(values) + infinite, len(values), lambda ranks: values[ranks - 1] * 1e3)


def from_histogram(counts: Counts) -> list[float | None]:
    """The same from the counts of gaps."""
    total, cumulative = int(counts.sum()), np.cumsum(counts)
    return _at_levels(
        total,
        total,
        lambda ranks: np.array([middle(int(at)) * 1e3 for at in np.searchsorted(cumulative, ranks)]),
    )


def _at_levels(total: int, known: int, read: Callable[[NDArray[np.int64]], NDArray[np.float64]]) -> list[float | None]:
    """Read the value of each level's rank, until the largest; None from the first that is not known."""
    if not known:
        return []
    ranks = np.maximum(-(-LEVELS * total // MILLION), 1)
    ranks = ranks[: int(np.searchsorted(ranks, total)) + 1]
    inside = ranks[ranks <= known]
    return [*(float(value) for value in read(inside)), *([None] * (len(ranks) - len(inside)))]


def cdf(name: str, lines: Sequence[Line], vlines: Sequence[dict[str, object]] = ()) -> Block:
    """The chart of CDFs; `vlines` are limits in ms."""
    series = [
        {
            "name": f"{line.name} (overloaded)" if line.is_overloaded else line.name,
            "x": page.rounded(line.values),
            "dash": line.is_overloaded,
            "floor": True,
        }
        | ({} if line.colour is None else {"colour": line.colour})
        for line in lines
    ]
    page.ramp(series)
    definition = METRICS[name].definition.partition(":")[0].partition(";")[0]
    return page.chart(
        f"Cumulative distribution of {TITLES[name]}",
        f"({definition}). Hover to read the share of {'gaps' if name == 'itl' else 'requests'} that took at most that long.",
        {
            "kind": "xy",
            "height": 300,
            "x": {"label": f"{TITLES[name]} in ms (logarithmic)", "scale": "log", "unit": "ms", "short": "within"},
            "y": {
                "label": "share",
                "format": "share",
                "min": 0,
                "max": 1,
                "values": [level / MILLION for level in LEVELS.tolist()],
                "nines": True,
            },
            "series": series,
            "vlines": vlines,
        },
    )


def _table(name: str, lines: list[Line], columns: Mapping[str, str]) -> list[AnyBlock]:
    known = [(line.name, line.found) for line in lines if line.found and line.found.count and not line.is_overloaded]
    made = percentiles("ms", known, columns)
    counts = {label: f"{found.count:,}" for label, found in known}
    rows = [(label, counts[label], *cells) for label, *cells in made.rows]
    rows += [(line.name, *["-"] * (len(made.columns) + 1)) for line in lines if line.name not in counts]
    titles = ["gaps" if name == "itl" else "requests", *made.columns]
    failed = max((line.found.infinite for line in lines if line.found), default=0)
    return [msgspec.structs.replace(made, columns=titles, rows=rows), *failures_note(failed)]


def request_line(run: Run, stage: int, name: str, label: str, is_overloaded: bool) -> Line | None:
    """The CDF of a latency that requests have, for one stage; None if there are no values."""
    values = _values_of(run, name, _Selection(label, stage, -1, {}, is_overloaded))
    return Line(label, values, None, is_overloaded) if any(value is not None for value in values) else None
