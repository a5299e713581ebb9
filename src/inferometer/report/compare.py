"""The comparison of runs in the terminal and as JSON: who is compared, one sentence per metric, conditions and notes."""

from collections.abc import Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.analysis.comparison import Comparison, MetricComparison, SideInfo
from inferometer.report import formatting
from inferometer.report.console import new_console
from inferometer.report.json import with_words
from inferometer.report.width import columns

_SIGNS = {"better": ("+", "green"), "worse": ("-", "red"), "no clear difference": ("=", "dim")}
_STATUS = {"fails": ("✗", "red"), "undecided": ("?", "yellow"), "passes": ("✓", "green")}
_SHOWN = ("mean", "p90", "p95")
"""Statistics that only JSON and Markdown have, unless they are named."""


def render(found: Sequence[Comparison], color: bool = False, width: int | None = None) -> str:
    """Render comparisons for `width` columns; by default, for the width of standard output."""
    width = columns() if width is None else width
    console = new_console(color, width)
    with console.capture() as capture:
        for each in found:
            for part in _parts(each):
                console.print(Padding(part, (0, 0, 1, 1)))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().rstrip("\n").splitlines())


def encode(found: Sequence[Comparison]) -> bytes:
    """The first comparison's fields, and all comparisons in `comparisons` if there are several."""
    tree = msgspec.to_builtins(found[0])
    if len(found) > 1:
        tree["comparisons"] = [msgspec.to_builtins(each) for each in found]
    return msgspec.json.format(msgspec.json.encode(with_words(tree)), indent=2) + b"\n"


def _parts(found: Comparison) -> list[RenderableType]:
    parts: list[RenderableType] = [_title(found)]
    for name, metrics in stages_of(found):
        lines: list[RenderableType] = [Text(name, style="bold")] if name else []
        parts.append(Group(*lines, _table(shown(found, metrics))))
    if found.conditions:
        parts.append(_conditions(found))
    parts.append(Group(*(Text(formatting.one_line(note, 1000), style="dim") for note in found.notes)))
    return parts


def stages_of(found: Comparison) -> list[tuple[str, dict[str, MetricComparison]]]:
    return [(stage.name, stage.metrics) for stage in found.stages] or [("", found.metrics)]


def shown(found: Comparison, metrics: dict[str, MetricComparison]) -> dict[str, MetricComparison]:
    """The metrics of the short table: medians, p99, rates, and all that are named by a condition or an objective."""
    named = {condition.condition.partition(" ")[0] for condition in found.conditions}
    return {
        name: metric
        for name, metric in metrics.items()
        if name in named or metric.p_holm is not None or not name.endswith(_SHOWN)
    }


def _title(found: Comparison) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for letter, side in (("A", found.a), ("B", found.b)):
        grid.add_row(Text(letter, style="bold"), Text(formatting.one_line(describe_side(side), 1000)))
    return grid


def describe_side(side: SideInfo) -> str:
    """`runs/a-*: http://127.0.0.1:8000, my-model, 8 runs`."""
    parts = [part for part in (side.url if side.url.rstrip("/") != side.label.rstrip("/") else "", side.model) if part]
    runs = f"{len(side.runs)} runs" if len(side.runs) > 1 else "1 run"
    return f"{side.label}: {', '.join([*parts, runs])}"


def amount(value: float | None, unit: str) -> str:
    """A figure with its unit, as tables print it."""
    if value is None:
        return "-"
    if unit == "s":
        return f"{formatting.milliseconds(value)} ms"
    if unit == "%":
        return f"{formatting.number(100 * value, 2) if value else 0} %"
    return f"{formatting.number(value)}{unit if unit.startswith('/') else f' {unit}'}"


def _table(metrics: dict[str, MetricComparison]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_column(justify="right", no_wrap=True)
    for metric in metrics.values():
        sign, style = _SIGNS[metric.verdict]
        word = metric.verdict if metric.verdict != "no clear difference" else "unclear"
        values = f"{amount(metric.a, metric.unit)} -> {amount(metric.b, metric.unit)}"
        grid.add_row(Text(f"{sign} {word}", style=f"bold {style}"), Text(metric.sentence), Text(values, style="dim"))
    return grid if metrics else Text("no figure was measured on both sides", style="yellow")


def _conditions(found: Comparison) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for each in found.conditions:
        sign, style = _STATUS[each.status]
        where = f"{each.stage}: " if each.stage else ""
        grid.add_row(
            Text(f"{sign} {each.status}", style=f"bold {style}"), Text(each.condition), Text(where + each.reason)
        )
    return Group(Text("fail if", style="bold"), grid)
