"""The section of the report about the server's own metrics: its figures, the client's beside them, and what follows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from inferometer.analysis.server_comparison import MEAN, Comparison
from inferometer.analysis.server_view import ServerView, unread
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import formatting
from inferometer.report.document import GAP, Block, Note, Section, Table
from inferometer.server_metrics.families import SERVERS
from inferometer.server_metrics.figures import SOURCE, Figures

_COLUMNS = ("mean", "p50", "p90", "p99", "max", "total")
_OPTIONAL = ("p50", "p90", "p99")
"""Columns that a narrow table leaves out, the first of them first."""
_OPTIONAL_BY_STAGE = ("cache hits, %", "batch", "KV max, %", "wait max", "preempted", "compute, ms")
_MAX_ROWS = 32
_MAX_LINES = 6
"""Lines about what is missing."""
_LEGEND = "difference of means: network and client; the server's percentiles are only as exact as its buckets"


class _Row(NamedTuple):
    """How a gauge, histogram, counter or derived figure is shown."""

    label: str
    scale: float = 1.0
    only_if_positive: bool = False
    is_minor: bool = False
    """Only shown if all quantities are wanted."""


_ROWS = {
    "running": _Row("running"),
    "waiting": _Row("waiting"),
    "swapped": _Row("swapped out"),
    "kv_cache_use": _Row("KV cache, %", 100),
    "prefix_cache_hit_rate": _Row("cache hits, %", 100),
    "preemptions": _Row("preemptions"),
    "spec_acceptance": _Row("accepted, %", 100),
    "queue_time": _Row("queue, ms", 1e3),
    "inference_time": _Row("inference, ms", 1e3),
    "prefill_time": _Row("prefill, ms", 1e3),
    "decode_time": _Row("decode, ms", 1e3),
    "compute_time": _Row("compute, ms", 1e3, only_if_positive=True),
    "ttft": _Row("ttft, ms", 1e3),
    "itl": _Row("itl, ms", 1e3),
    "tpot": _Row("tpot, ms", 1e3),
    "e2e": _Row("e2e, ms", 1e3),
    "batch": _Row("batch"),
    "requests": _Row("requests"),
    "inferences": _Row("inferences", is_minor=True),
    "executions": _Row("executions", is_minor=True),
    "prefix_cache_queries": _Row("cache lookups", is_minor=True),
    "prefix_cache_hits": _Row("cache hits", is_minor=True),
    "spec_drafted": _Row("drafted", is_minor=True),
    "spec_accepted": _Row("accepted", is_minor=True),
    "queue_seconds": _Row("queue, s in all", is_minor=True),
    "prefill_seconds": _Row("prefill, s in all", is_minor=True),
    "decode_seconds": _Row("decode, s in all", is_minor=True),
    "compute_seconds": _Row("compute, s in all", is_minor=True),
    "input_tokens": _Row("input tokens"),
    "output_tokens": _Row("output tokens"),
    "failures": _Row("failures", only_if_positive=True),
    "aborted": _Row("aborted", only_if_positive=True),
    "gpu_use": _Row("GPU, %", 100),
    "gpu_memory": _Row("GPU memory, GB", 1e-9),
    "gpu_power": _Row("GPU power, W"),
    "gpu_energy": _Row("GPU energy, J"),
    "gpu_temperature": _Row("GPU, °C"),
    "gpu_clock": _Row("GPU clock, MHz"),
}
_OFF_IF_ZERO = ("swapped", "spec_acceptance")
"""Gauges that are 0 if the server does not do this at all."""
_QUIET_IF_ZERO = ("preemptions",)
"""Counters that are worth showing only if there is something in them, in any of the stages."""
_IMPLIED = {"inference_time": {"prefill_time", "decode_time"}, "compute_time": {"inference_time"}, "tpot": {"itl"}}
"""Quantities that say nothing new if the server has these."""
_COUNTED = ("requests", "input_tokens", "output_tokens")


def server(run: Run, summary: Summary) -> Section:
    """The server's figures beside the client's, and why they are missing."""
    view = summary.server
    problems = [_one_line(f"{name}: {why}") for name, why in unread(run.manifest).items()]
    blocks: list[Block] = []
    if view is not None:
        own = [(stage.name, stage.server) for stage in summary.stages if stage.server]
        parts = [
            _by_stage(own, view) if summary.stages else figures(view),
            _by_target(view.figures),
            _client_and_server(view.comparison),
        ]
        for part in filter(None, parts):
            blocks += [GAP, *part] if blocks else part
        blocks += [Note(_one_line(note), "warn", "!") for note in view.notes]
        blocks += [Note(_one_line(line)) for line in _missing(summary, view)]
        if not blocks and not problems:
            scraped = (each.labels["target"] for each in run.series() if each.source == SOURCE)
            targets = list(view.figures.servers) or list(dict.fromkeys(scraped))
            problems = [
                f"none of the metrics of {', '.join(targets) or 'the server'} is one that inferometer knows (series.parquet has "
                "them); next: check that this is the model server's endpoint, and name another with --observe"
            ]
        if not blocks:
            words = (("server's metrics", "strong"), ("   not read: ", ""), ("; ".join(map(_one_line, problems)), ""))
            blocks, problems = [Note(words, "")], []
    blocks += [Note(problem, "warn") for problem in problems]
    return Section("server", "Server", blocks)


def _one_line(text: str) -> str:
    return formatting.one_line(text, 1000)


# --- figures ---------------------------------------------------------------------------------------------------------


def figures(view: ServerView, is_complete: bool = False) -> list[Block]:
    """One row per quantity, except for those that are compared with the client's, and those that say nothing new, unless all
    are wanted. Columns that no quantity has are left out."""
    left_out: set[str] = set()
    if not is_complete:
        left_out |= {name.removesuffix(f".{MEAN}") for name in view.comparison}
        left_out |= {name for name, row in _ROWS.items() if row.is_minor}
        left_out |= {name for name, others in _IMPLIED.items() if others <= view.figures.histograms.keys()}
    left_out |= _without_counts([view])
    rows = {row.label: cells for name, row in _ROWS.items() if name not in left_out and (cells := _cells(view, name))}
    if not rows:
        return []
    columns = [column for column in _COLUMNS if any(column in cells for cells in rows.values())]
    lines = [(label, *(row.get(column, "") for column in columns)) for label, row in rows.items()]
    return [Table(_title(view.figures), columns, lines, _OPTIONAL)]


def _without_counts(views: Iterable[ServerView]) -> set[str]:
    """Counters that are 0 in all of these views, and say nothing then."""
    counters = [view.figures.counters for view in views]
    return {name for name in _QUIET_IF_ZERO if not any(name in each and each[name].delta for each in counters)}


def _cells(view: ServerView, name: str) -> dict[str, str]:
    """The cells of a quantity by column; empty if the server does not have it."""
    row, values = _ROWS[name], _values(view, name)
    if row.only_if_positive and not any(value and value > 0 for value in values.values()):
        return {}
    cells = {column: _number(column, value, row.scale) for column, value in values.items() if value is not None}
    if name in view.figures.histograms:
        cells |= {column: f"< {formatting.number(edge * row.scale)}" for column, edge in _below(view, name)}
    return cells


def _below(view: ServerView, name: str) -> Iterable[tuple[str, float]]:
    """Percentiles that are in the first bucket, and its upper edge."""
    return view.figures.histograms[name].below.items()


def _values(view: ServerView, name: str) -> Mapping[str, float | None]:
    found = view.figures
    if (gauge := found.gauges.get(name)) and (gauge.max or name not in _OFF_IF_ZERO):
        return {"mean": gauge.mean, "max": gauge.max}
    if (histogram := found.histograms.get(name)) and histogram.count:
        return {"mean": histogram.mean} | histogram.quantiles
    if counter := found.counters.get(name):
        return {"total": counter.delta}
    return {"mean": view.derived[name]} if name in view.derived else {}


def _number(column: str, value: float, scale: float) -> str:
    return formatting.count(value * scale) if column in ("max", "total") else formatting.number(value * scale)


def _title(figures: Figures) -> str:
    kinds = ", ".join(sorted({SERVERS[kind].title if kind in SERVERS else kind for kind in figures.servers.values()}))
    return formatting.one_line(f"server ({kinds})" if kinds else "server", 26)


# --- stages and replicas ---------------------------------------------------------------------------------------------


_STAGE_COLUMNS = {
    "running": ("running", "mean"),
    "waiting": ("waiting", "mean"),
    "wait max": ("waiting", "max"),
    "KV cache, %": ("kv_cache_use", "mean"),
    "KV max, %": ("kv_cache_use", "max"),
    "cache hits, %": ("prefix_cache_hit_rate", "mean"),
    "preempted": ("preemptions", "total"),
    "queue, ms": ("queue_time", "mean"),
    "queue p90": ("queue_time", "p90"),
    "compute, ms": ("compute_time", "mean"),
    "batch": ("batch", "mean"),
}
"""The quantity and its statistic in each column of the table of stages."""


def _by_stage(stages: Sequence[tuple[str, ServerView]], whole: ServerView) -> list[Block]:
    """One row per stage; names may repeat. The other figures are in summary.json."""
    cells = [
        (stage, {label: _cells(view, name).get(column) for label, (name, column) in _STAGE_COLUMNS.items()})
        for stage, view in stages
    ]
    left_out = _without_counts(view for _, view in stages)
    columns = [label for label, (name, _) in _STAGE_COLUMNS.items() if name not in left_out]
    return _rows(_title(whole.figures), cells, columns, _OPTIONAL_BY_STAGE)


def _by_target(figures: Figures) -> list[Block]:
    """One row per endpoint, with the means of its gauges, if there are several."""
    shown = {row.label: (row, figures.gauges[name]) for name, row in _ROWS.items() if name in figures.gauges}
    targets = sorted({target for _, gauge in shown.values() for target in gauge.by_target})
    if len(targets) < 2:
        return []
    cells = [
        (
            _address(target),
            {
                label: formatting.number(gauge.by_target[target] * row.scale) if target in gauge.by_target else None
                for label, (row, gauge) in shown.items()
            },
        )
        for target in targets
    ]
    return _rows("replicas, means", cells, shown, tuple(reversed(shown)))


def _rows(
    title: str,
    cells: Sequence[tuple[str, Mapping[str, str | None]]],
    columns: Iterable[str],
    optional: Sequence[str],
) -> list[Block]:
    """A table of cells by column, with a row for each label, without columns that are empty."""
    kept = [column for column in columns if any(row[column] is not None for _, row in cells)]
    if not kept:
        return []
    rows = [
        (formatting.one_line(name, 24), *(row[column] or "-" for column in kept)) for name, row in cells[:_MAX_ROWS]
    ]
    more = len(cells) - _MAX_ROWS
    return [
        Table(title, kept, rows, optional),
        *([Note(f"and {more:,} more, which are in summary.json")] if more > 0 else []),
    ]


def _address(target: str) -> str:
    """The host and port of an endpoint; its path only if it is not the usual one."""
    return target.partition("://")[2].removesuffix("/metrics") or target


# --- the client beside the server ------------------------------------------------------------------------------------


def _client_and_server(comparison: Mapping[str, Comparison]) -> list[Block]:
    """What both sides counted and measured. For times, the difference is the share of the network and the client."""
    rows = [_count(_ROWS[name].label, comparison[name]) for name in _COUNTED if name in comparison]
    times = [name for name in comparison if name not in _COUNTED]
    strong = []
    for name in times:
        metric, _, statistic = name.partition(".")
        strong += [len(rows)] if statistic == MEAN else []
        rows.append(_time(f"{metric} {statistic}, ms", comparison[name], is_mean=statistic == MEAN))
    columns = ["client", "server", "difference", "share"]
    notes = [_LEGEND] if times else []
    return [Table("client and server", columns, rows, strong=strong, notes=notes)] if rows else []


def _count(label: str, both: Comparison) -> tuple[str, ...]:
    difference = f"{both.difference:+,.0f}" if both.difference else "0"
    return label, formatting.count(both.client), formatting.count(both.server), difference, ""


def _time(label: str, both: Comparison, is_mean: bool) -> tuple[str, ...]:
    """A row in milliseconds. Only means have a difference that can be attributed: percentiles depend on the buckets."""
    decimals = formatting.decimals_for(1e3 * both.client)
    client, server = (formatting.milliseconds(each, decimals) for each in (both.client, both.server))
    share = f"{both.difference / both.client:.1%}" if both.client > 0 else ""
    return label, client, server, *((formatting.milliseconds(both.difference), share) if is_mean else ("", ""))


# --- what is missing -------------------------------------------------------------------------------------------------


def _missing(summary: Summary, whole: ServerView) -> list[str]:
    """Why quantities have no figure, with one line for each reason; then the stages that have fewer figures than the whole run."""
    lines = [f"not known: {', '.join(names)}: {why}" for why, names in _by_reason(whole.figures.missing).items()]
    for stage in summary.stages:
        own = stage.server.figures.missing if stage.server is not None else {}
        missing = {name: why for name, why in own.items() if name not in whole.figures.missing}
        lines += [f"{stage.name}: {', '.join(names)} not known: {why}" for why, names in _by_reason(missing).items()]
    return lines if len(lines) <= _MAX_LINES else [*lines[:_MAX_LINES], "more reasons are in summary.json"]


def _by_reason(missing: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, why in missing.items():
        found.setdefault(why, []).append(name)
    return found
