"""What pages about several runs share: CDFs over each other, the value of each run as a dot, and what differs between manifests."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from inferometer.analysis.comparable import manifest_differences
from inferometer.analysis.comparison_text import title
from inferometer.records import Manifest, Run
from inferometer.report import formatting
from inferometer.report.html import page
from inferometer.report.html.latency import Line, cdf, pooled
from inferometer.report.html.page import Block
from inferometer.report.html.parts import TITLES

SHOWN = ("ttft", "itl", "e2e", "queue", "compute", "protocol", "network")
"""Latencies whose distributions are drawn."""
_MOST_COLUMNS = 4
"""With more runs, the table of differences has a row per value instead of a column per run."""


def distributions(
    names: Sequence[str],
    stages: Sequence[str],
    groups: Sequence[tuple[str, Sequence[Run]]],
    limits: Mapping[str, Sequence[dict[str, object]]],
    colours: Sequence[int] | None = None,
) -> list[Block]:
    """A CDF per group of runs (pooled), with a switch for the metric and one for the stage; `colours` are those of the groups."""
    panes: dict[str, Sequence[Block]] = {}
    for name in names:
        for index in range(len(stages)):
            lines = [
                Line(label, pooled(runs, name, index), None, colour=colours[number] if colours else None)
                for number, (label, runs) in enumerate(groups)
            ]
            lines = [line for line in lines if any(value is not None for value in line.values)]
            if lines:
                panes[f"{name}|{index}"] = [cdf(name, lines, limits.get(name, ()))]
            else:
                panes[f"{name}|{index}"] = [page.note("There are no values for this choice.")]
    switches = [
        [(name, TITLES[name]) for name in names],
        [(str(index), name) for index, name in enumerate(stages)],
    ]
    return [page.tabs(switches, panes)] if panes else []


def values_chart(
    name: str, unit: str, sides: Sequence[tuple[str, Sequence[float | None]]], what: str, mean: float | None = None
) -> Block:
    """The value of each run: one dot per run, in the order in which they were measured; sides beside each other."""
    scale = {"s": 1e3, "%": 100.0}.get(unit, 1.0)
    shown = {"s": "ms", "/s": "per second"}.get(unit, unit)
    most = max(len(values) for _, values in sides)
    series: list[dict[str, object]] = [
        {
            "name": label,
            "scatter": True,
            "points": True,
            "x": list(range(1, len(values) + 1)),
            "y": page.rounded(None if value is None else scale * value for value in values),
            "labels": [f"{what} {number}" for number in range(1, len(values) + 1)],
        }
        for label, values in sides
    ]
    if mean is not None:
        line = page.rounded([scale * mean] * 2)
        series.append({"name": "mean", "colour": 7, "dash": True, "x": [0.5, most + 0.5], "y": line})
    return page.chart(
        f"{title(name)[:1].upper()}{title(name)[1:]} of each {what}.",
        "",
        {
            "kind": "xy",
            "height": 240,
            "x": {"label": what, "min": 0.5, "max": most + 0.5, "ticks": _ticks(most)},
            "y": {"label": f"{shown}"},
            "series": series,
        },
    )


def _ticks(most: int) -> list[int]:
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100, 1000, 10**6) if most / size <= 12)
    return list(range(step, most + 1, step))


def differences(manifests: Sequence[Manifest], names: Sequence[str]) -> list[Block]:
    """A table of what differs between manifests, a column each."""
    first, *others = manifests
    rows: dict[str, dict[int, tuple[str, str]]] = {}
    for index, other in enumerate(others, 1):
        for key, one, two in manifest_differences(first, other):
            rows.setdefault(key, {})[index] = (one, two)
    if not rows:
        return [page.note("Config, versions and machine are the same; only seeds and salts may differ.")]
    table = []
    for key, found in rows.items():
        base = next(iter(found.values()))[0]
        values = [base, *(found[index][1] if index in found else base for index in range(1, len(manifests)))]
        cells = [formatting.one_line(value, 90) for value in values]
        if len(names) <= _MOST_COLUMNS:
            table.append([key, *cells])
            continue
        for value in dict.fromkeys(cells):
            those = [name for name, cell in zip(names, cells, strict=True) if cell == value]
            more = f" and {len(those) - 3} more" if len(those) > 3 else ""
            table.append([key, value, f"{', '.join(those[:3])}{more}"])
    columns = ["differs", *names] if len(names) <= _MOST_COLUMNS else ["differs", "value", "runs"]
    return [page.table(columns, table, texts=tuple(range(1, len(columns))))]


def letter(index: int) -> str:
    """What a side is called: A, B, C ..., and S27 after Z."""
    return chr(ord("A") + index) if index < 26 else f"S{index + 1}"


def short_title(name: str) -> str:
    """What a card or a switch calls a figure: `TTFT p99`, `output tokens/s`."""
    return title(name).replace("throughput (", "").replace(")", "")


def short_labels(labels: Iterable[str]) -> list[str]:
    """Labels of runs or sides without what they all begin with, up to a slash: `runs/a` and `runs/b` become `a` and `b`."""
    each = [label.rstrip("/") for label in labels]
    parts = [label.split("/") for label in each]
    common = 0
    while all(len(part) > common + 1 for part in parts) and all(
        one[common] == two[common] for one, two in pairwise(parts)
    ):
        common += 1
    cut = ["/".join(part[common:]) for part in parts]
    return cut if len(set(cut)) == len(cut) and len(cut) > 1 else each
