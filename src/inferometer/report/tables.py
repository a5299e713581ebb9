"""What the tables of the report have in common: their columns, their cells, and the footnotes to them."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from inferometer.analysis import settings
from inferometer.analysis.percentiles import label_of
from inferometer.records import Manifest
from inferometer.report.width import bare

COLUMNS = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max"}
"""The columns of a table of latencies, with their titles."""
MARK = "*"
"""Marks a percentile of too few values."""


def columns_of(manifest: Manifest) -> dict[str, str]:
    """The columns of a table of latencies, with their titles: the percentiles that were requested, or the usual ones."""
    requested = settings.percentiles(manifest)
    return {name: label_of(name) for name in ("mean", *requested, "max")} if requested else COLUMNS


def interval_of(columns: Iterable[str]) -> str:
    """The percentile whose confidence interval a table shows: p99, or the highest that it has."""
    named = [name for name in columns if name not in ("mean", "max")]
    return "p99" if "p99" in named or not named else named[-1]


def by_metric(manifest: Manifest, metrics: Sequence[str], usual: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The columns of a table with several metrics: each with the percentiles that were requested, or the usual ones."""
    requested = settings.percentiles(manifest)
    return [(metric, name) for metric in metrics for name in requested] if requested else list(usual)


def table(title: str, columns: list[str]) -> Table:
    made = bare()
    made.add_column(title, min_width=15, no_wrap=True)
    for column in columns:
        made.add_column(f"{column} ", justify="right", no_wrap=True, min_width=8)
    return made


def note(text: str) -> Table:
    """A line that a user should read, with an exclamation mark before it; further lines are aligned with its text."""
    made = Table.grid(padding=(0, 1))
    made.add_column(style="yellow", width=1)
    made.add_column(style="yellow")
    made.add_row("!", Text(text))
    return made


def flow(parts: Sequence[Text], room: int) -> Text:
    """Put the parts one after the other, with line breaks only between them."""
    gap, lines = Text("   "), [Text()]
    for part in parts:
        if lines[-1] and lines[-1].cell_len + gap.cell_len + part.cell_len > room:
            lines.append(Text())
        lines[-1] = Text.assemble(lines[-1], gap, part) if lines[-1] else part
    return Text("\n").join(lines)
