"""What the tables of the report have in common: their columns, their cells, and the footnotes to them."""

from rich.table import Table

from inferometer.report.width import bare

COLUMNS = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max"}
MARK = "*"
"""Marks a percentile of too few values."""


def table(title: str, columns: list[str]) -> Table:
    made = bare()
    made.add_column(title, min_width=15, no_wrap=True)
    for column in columns:
        made.add_column(f"{column} ", justify="right", no_wrap=True, min_width=8)
    return made
