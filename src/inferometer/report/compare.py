"""The comparison of runs in the terminal and as JSON: who is compared, one sentence per metric, conditions and notes."""

from collections.abc import Sequence

import msgspec

from inferometer.analysis.comparison import Comparison, MetricComparison, SideInfo
from inferometer.report import console, formatting
from inferometer.report.document import Block, Column, Document, Listing, Note, Section
from inferometer.report.json import with_words
from inferometer.report.width import columns

_SIGNS = {"better": ("+", "good"), "worse": ("-", "bad"), "no clear difference": ("=", "dim")}
_STATUS = {"fails": ("✗", "bad"), "undecided": ("?", "warn"), "passes": ("✓", "good")}
_SHOWN = ("mean", "p90", "p95")
"""Statistics that only JSON and Markdown have, unless they are named."""


def render(found: Sequence[Comparison], color: bool = False, width: int | None = None) -> str:
    """Render comparisons for `width` columns; by default, for the width of standard output."""
    each = [section for one in found for section in sections(one)]
    text = console.text(Document((), each), color, columns() if width is None else width)
    return text.rstrip("\n") + "\n"


def encode(found: Sequence[Comparison]) -> bytes:
    """The first comparison's fields, and all comparisons in `comparisons` if there are several."""
    tree = msgspec.to_builtins(found[0])
    if len(found) > 1:
        tree["comparisons"] = [msgspec.to_builtins(each) for each in found]
    return msgspec.json.format(msgspec.json.encode(with_words(tree)), indent=2) + b"\n"


def sections(found: Comparison, is_complete: bool = False) -> list[Section]:
    """The sides, the figures of each stage, the conditions and the notes; `is_complete`: also the figures that a terminal leaves out."""
    sides = Listing(
        (Column("", "strong"), Column("side")),
        [(letter, formatting.one_line(describe_side(side), 1000)) for letter, side in (("A", found.a), ("B", found.b))],
    )
    figures = [
        Section(
            f"figures-{number}",
            "Figures",
            [*([Note(name, "strong")] if name else []), _table(metrics if is_complete else shown(found, metrics))],
        )
        for number, (name, metrics) in enumerate(stages_of(found))
    ]
    conditions = Section("conditions", "Conditions", _conditions(found))
    notes = Section("notes", "Notes", [Note(formatting.one_line(note, 1000)) for note in found.notes])
    return [Section("sides", "Sides", [sides]), *figures, conditions, notes]


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


def _table(metrics: dict[str, MetricComparison]) -> Block:
    rows = []
    for metric in metrics.values():
        sign, tone = _SIGNS[metric.verdict]
        word = metric.verdict if metric.verdict != "no clear difference" else "unclear"
        values = f"{amount(metric.a, metric.unit)} -> {amount(metric.b, metric.unit)}"
        rows.append((((f"{sign} {word}", f"strong {tone}"),), metric.sentence, ((values, "dim"),)))
    columns = (Column("verdict", wraps=False), Column("in words"), Column("A -> B", right=True, wraps=False))
    return Listing(columns, rows) if rows else Note("no figure was measured on both sides", "warn")


def _conditions(found: Comparison) -> list[Block]:
    rows = []
    for each in found.conditions:
        sign, tone = _STATUS[each.status]
        where = f"{each.stage}: " if each.stage else ""
        rows.append((((f"{sign} {each.status}", f"strong {tone}"),), each.condition, where + each.reason))
    columns = (Column("status"), Column("condition", is_code=True), Column("why"))
    return [Note("fail if", "strong"), Listing(columns, rows)] if rows else []
