"""The server's own figures beside the client's: per stage, compared with each other, and what follows from them.

A gauge (running, waiting, KV cache) counts over the measured window of a stage, as the latencies do. Counters and histograms count over the
whole stage with its warm-up, from one scrape to another, because they are compared with the requests that ended in that time. Between
two stages, that scrape is the first one after the later stage began. The values before the first stage are those at t=0, so the
requests of the probe do not count.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from inferometer.analysis import settings
from inferometer.analysis.server_comparison import Comparison, compare
from inferometer.analysis.server_notes import Queues, notes, notes_of_run
from inferometer.analysis.throughput import Spans
from inferometer.records import MISSING, Columns, Manifest, Run
from inferometer.series import TimeSeries
from inferometer.server_metrics.figures import Figures, figures
from inferometer.server_metrics.targets import SOURCE, STAGE, UP
from inferometer.server_metrics.vocabulary import QUANTITIES
from inferometer.units import NS

__all__ = ["Comparison", "ServerView", "ServerViews", "definitions", "server_views", "unread"]

Window = tuple[int, int]
"""ns since t=0."""

DERIVED = {
    "prefix_cache_hit_rate": "prefix_cache_hits / prefix_cache_queries (or / input_tokens, if lookups are not counted)",
    "spec_acceptance": "spec_accepted / spec_drafted",
    "queue_time": "queue_seconds / requests, of servers without a histogram",
    "prefill_time": "prefill_seconds / requests, of servers without a histogram",
    "decode_time": "decode_seconds / requests, of servers without a histogram",
    "compute_time": "compute_seconds / requests",
    "batch": "inferences / executions",
}
"""Definitions of ServerView.derived. A server that does not count requests is taken to have completed those of this client."""
_RATIOS = {
    "prefix_cache_hit_rate": ("prefix_cache_hits", ("prefix_cache_queries", "input_tokens")),
    "spec_acceptance": ("spec_accepted", ("spec_drafted",)),
    "batch": ("inferences", ("executions",)),
}
_PER_REQUEST = {f"{name}_time": f"{name}_seconds" for name in ("queue", "prefill", "decode", "compute")}


class ServerView(msgspec.Struct, frozen=True):
    """What the server reported about a stage, or about the whole run."""

    figures: Figures
    comparison: dict[str, Comparison] = {}
    """`requests`, `input_tokens`, `output_tokens`, `ttft.mean`, `ttft.p50`, `ttft.p99`, `e2e.mean` ...: those that both know."""
    notes: tuple[str, ...] = ()
    """What a user should know: that the server queued, preempted, or took prompts from its cache."""
    derived: dict[str, float] = {}
    """Ratios of counters: see DERIVED."""


class ServerViews(msgspec.Struct, frozen=True):
    whole: ServerView | None = None
    stages: tuple[ServerView | None, ...] = ()


def server_views(run: Run, spans: Spans) -> ServerViews:
    """Return the server's view of the run and of each stage; None if no metrics of it were read."""
    series = [each for each in run.series() if each.source == SOURCE]
    count = len(spans.windows)
    if not series and not unread(run.manifest):
        return ServerViews(stages=(None,) * count)
    starts = _starts(run.records.rows, count)
    edges = _edges(series, run.records.rows, starts)
    measured = [_measured(run.records.rows, spans, stage, starts, edges[-1]) for stage in range(count)]
    stages = tuple(_view(run, series, measured[stage], (edges[stage], edges[stage + 1])) for stage in range(count))
    return ServerViews(_whole(run, series, stages, measured, edges), stages)


def unread(manifest: Manifest) -> dict[str, str]:
    """Why metrics of servers are missing or incomplete, by endpoint."""
    return {name: why for name, why in manifest.observer_errors.items() if name.startswith(_ENDPOINTS)}


_ENDPOINTS = ("http://", "https://", "prometheus", "promql")


def definitions(view: ServerView) -> dict[str, str]:
    """Definitions of the quantities that this view has."""
    own = view.figures
    names = [name for name in QUANTITIES if name in own.gauges or name in own.counters or name in own.histograms]
    return {f"server.{name}": QUANTITIES[name].definition for name in names} | {
        f"server.derived.{name}": DERIVED[name] for name in DERIVED if name in view.derived
    }


# --- windows ---------------------------------------------------------------------------------------------------------


def _starts(rows: Columns, count: int) -> list[int]:
    """When each stage began: at its first intended instant. A stage without requests began with the next one."""
    stage, intended = rows["stage"], rows["intended"]
    starts = [int(intended[stage == number].min(initial=np.iinfo(np.int64).max)) for number in range(count)]
    starts[0] = min(starts[0], 0)
    for number in reversed(range(count - 1)):
        starts[number] = min(starts[number], starts[number + 1])
    return starts


def _edges(series: Sequence[TimeSeries], rows: Columns, starts: Sequence[int]) -> list[int]:
    """The scrapes between which each stage's counters count: one more than there are stages."""
    scrapes = [each for each in series if each.name == UP and len(each.at)]
    done = rows["done"]
    last = int(done[done != MISSING].max(initial=0))
    end = max((int(each.at[-1]) for each in scrapes), default=last)
    edges = [starts[0]]
    for number, start in enumerate(starts[1:], 1):
        following = min(starts[number + 1], end) if number + 1 < len(starts) else end
        firsts = _marked(series, number) or [_first_scrape(each, start, following) for each in scrapes]
        edges.append(max([edges[-1], *(first for first in firsts if first is not None)]))
    return [*edges, max(end, edges[-1])]


def _marked(series: Sequence[TimeSeries], stage: int) -> list[int | None]:
    """The scrapes that were made because a stage had begun; none if it was not noticed in time, or if the metrics are Prometheus's."""
    return [int(at) for each in series if each.name == STAGE for at in each.at[each.value == stage][:1]]


def _first_scrape(up: TimeSeries, begin: int, end: int) -> int | None:
    """The first scrape of one target in a stage."""
    instants = up.at[up.value > 0]
    at = int(np.searchsorted(instants, begin))
    return int(instants[at]) if at < len(instants) and instants[at] < end else None


def _measured(rows: Columns, spans: Spans, stage: int, starts: Sequence[int], end: int) -> Window:
    """The window of a stage's gauges: the time that its rates count over, else that of its measured requests, else the whole stage. The
    last requests of a stage may end in the next one: neither counts the other's, as long as that leaves half of the window."""
    span, window = spans.spans[stage], spans.windows[stage]
    until = min(starts[stage + 1], end) if stage + 1 < len(starts) else end
    begin, last = min(starts[stage], end), until
    if not span.reason:
        begin, last = span.start, min(span.end, until)
    elif window.span:
        begin, last = round(window.start * NS), min(round(window.end * NS), until)
    done = rows["done"][(rows["stage"] < stage) & (rows["done"] != MISSING)]
    left = int(done.max(initial=begin))
    return (left if left <= (begin + last) // 2 else begin), last


# --- views -----------------------------------------------------------------------------------------------------------


def _view(run: Run, series: Sequence[TimeSeries], measured: Window, counted: Window) -> ServerView:
    found = _figures(run, series, measured, counted)
    comparison = compare(run.records.rows, found, *counted)
    derived = _derived(found, run.records.rows, counted)
    return ServerView(found, comparison, notes(found, derived, _fresh_limit(run)), derived)


def _whole(
    run: Run,
    series: Sequence[TimeSeries],
    stages: Sequence[ServerView],
    measured: Sequence[Window],
    edges: Sequence[int],
) -> ServerView:
    """The view of the whole run: that of its only stage, or of all of them together."""
    window = min(begin for begin, _ in measured), max(end for _, end in measured)
    view = stages[0] if len(stages) == 1 else _view(run, series, window, (edges[0], edges[-1]))
    names = [plan.name or plan.type for plan in run.manifest.plan]
    queues: Queues = [
        (name, waiting.mean, waiting.max)
        for name, stage in zip(names, stages, strict=True)
        if (waiting := stage.figures.gauges.get("waiting"))
    ]
    rows = run.records.rows
    has_failures = bool(((rows["failure"] != 0) & (rows["sent"] != MISSING)).any())
    found = notes_of_run(
        view.figures, view.derived, _fresh_limit(run), queues, len(stages), view.comparison, has_failures
    )
    return msgspec.structs.replace(view, notes=found)


def _figures(run: Run, series: Sequence[TimeSeries], measured: Window, counted: Window) -> Figures:
    """Gauges over the measured window, counters and histograms over the time in which requests are counted."""
    model = str(settings.text(run.manifest, "server", "model") or "")
    levels, growth = figures(series, *measured, model), figures(series, *counted, model)
    missing = {name: why for name, why in levels.missing.items() if _is_gauge(name)}
    missing |= {name: why for name, why in growth.missing.items() if not _is_gauge(name)}
    return msgspec.structs.replace(growth, gauges=levels.gauges, missing=missing)


def _is_gauge(name: str) -> bool:
    return name in QUANTITIES and QUANTITIES[name].kind == "gauge"


def _derived(found: Figures, rows: Columns, counted: Window) -> dict[str, float]:
    counters = {name: counter.delta for name, counter in found.counters.items()}
    derived = {}
    for name, (part, wholes) in _RATIOS.items():
        whole = next((counters[each] for each in wholes if each in counters), 0.0)
        if part in counters and whole > 0:
            derived[name] = counters[part] / whole
    done = rows["done"]
    own = int(((rows["failure"] == 0) & (done > counted[0]) & (done <= counted[1])).sum())
    requests = counters.get("requests", float(own))
    if requests > 0:
        sums = {name: total for name, total in _PER_REQUEST.items() if name not in found.histograms}
        derived |= {name: counters[total] / requests for name, total in sums.items() if total in counters}
    return {name: derived[name] for name in DERIVED if name in derived}


def _fresh_limit(run: Run) -> float | None:
    """The share of prompt tokens that the server may have cached if every prompt is new; None if prompts may repeat."""
    distinct = settings.number(run.manifest.workload, "distinct")
    repeats = (run.records.rows["turn"] > 0).any() or (distinct is not None and distinct < len(run.records.rows))
    if repeats or not settings.has_new_prompts(run.manifest):
        return None
    return settings.limits(run.manifest).cached
