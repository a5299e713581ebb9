"""What the tables of latencies have in common: their columns and their cells."""

from collections.abc import Iterable, Sequence

from inferometer.analysis import settings
from inferometer.analysis.percentiles import Distribution, label_of
from inferometer.records import Manifest
from inferometer.report import formatting
from inferometer.report.document import MARK

COLUMNS = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max"}
"""The columns of a table of latencies, with their titles."""


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


def marked(found: Distribution, column: str, decimals: int | None = None) -> str:
    """A latency in milliseconds, with a mark if there are too few values for it."""
    return formatting.milliseconds(found.value(column), decimals) + (MARK if column in found.unsupported else "")
