"""What other tools would report for the same requests, by their own definitions, and why it differs from our figures.

metrics.TOOL_FIGURES has the definitions. What these tools measure beyond them is not in the records: their own delays in Python, the arrival
of a chunk without a token, and tokens counted by another tokenizer. Each stage is reported as if it were a run of its own.
"""

from collections.abc import Callable, Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import exact, settings
from inferometer.analysis.gaps import gather
from inferometer.analysis.metrics import TOOL_FIGURES
from inferometer.analysis.percentiles import Distribution, Values
from inferometer.analysis.summary import StageSummary, Summary
from inferometer.analysis.throughput import Throughput
from inferometer.analysis.tool_definitions import Seconds, inference_perf_latencies, interpolated, starts, until
from inferometer.analysis.window import STEADY
from inferometer.errors import UserError
from inferometer.records import MISSING, Run
from inferometer.units import NS, format_seconds

Mask = NDArray[np.bool_]

STATISTICS = {"mean": "mean", "median": "p50", "p99": "p99"}
"""Their statistics, and ours."""
Seen = tuple[dict[str, Values], dict[str, float | None], float]
"""Latencies and rates by the names of the tool, and the time that the rates count over."""
_INTERPOLATED = "it interpolates percentiles between two values"
_SAME = 0.001
"""Figures that differ by at most this share are the same."""


class Figure(msgspec.Struct, frozen=True):
    """A figure of the other tool beside ours. Latencies are in seconds, rates per second; null: there is no value."""

    figure: str
    statistic: str
    """`mean`, `median` or `p99`; empty for rates."""
    theirs: float | None
    ours: float | None
    our_name: str
    reason: str
    """Why the two differ; empty if they do not, or if one is missing."""


class StageAs(msgspec.Struct, frozen=True):
    stage: str
    completed: int
    failed: int
    duration: float
    """Seconds over which the tool would count rates."""
    figures: tuple[Figure, ...]


class ReportAs(msgspec.Struct, frozen=True):
    tool: str
    stages: tuple[StageAs, ...]
    definitions: dict[str, str]
    notes: tuple[str, ...]


def report_as(tool: str, run: Run, summary: Summary) -> ReportAs:
    """What `tool`, a key of TOOL_FIGURES, would report. Raises UserError when it cannot measure such a run, or nothing was sent."""
    if not settings.receives_text(run.manifest):
        raise UserError(
            f"--as {tool}: this tool reports on generated text, and the run has none", "leave out --as for our report"
        )
    if not (run.records.rows["sent"] != MISSING).any():
        raise UserError(f"--as {tool}: no request of the run was sent", "leave out --as: the report says why")
    stages = summary.stages or (None,)
    found = tuple(_stage(tool, run, summary, index, stage) for index, stage in enumerate(stages))
    definitions = {each.label: each.definition for each in TOOL_FIGURES[tool]}
    return ReportAs(tool, tuple(each for each in found if each is not None), definitions, tuple(_notes(tool, run)))


def _notes(tool: str, run: Run) -> Iterable[str]:
    rows = run.records.rows
    if settings.text(run.manifest, "server", "stream") is False:
        yield "responses were not streamed, so there is no first token" + (
            "; vllm bench always streams" if tool == "vllm-bench" else ""
        )
    if tool == "vllm-bench" and settings.text(run.manifest, "server", "api") == "chat":
        yield "vllm bench counts a chat's first chunk even if it has only the role; the records have the first token instead"
    if tool == "inference-perf":
        yield "inference-perf counts tokens with its own tokenizer; the counts here are those of the run"
    if (rows["failure"] != 0).any():
        yield "both tools count a stream that ends early or without a token as a success in some cases; here it has failed"


class _Stage:
    """The requests of a stage as the other tools see them. Times are in seconds."""

    def __init__(self, run: Run, index: int) -> None:
        rows, plan = run.records.rows, run.manifest.plan[index]
        own: Mask = (rows["stage"] == index) & (rows["sent"] != MISSING)
        self.mask: Mask = own & (rows["failure"] == 0)
        self.sent_rows, self.rows = rows[own], rows[self.mask]
        self.is_capped = plan.open and plan.concurrency > 0
        self.begin = 0.0 if index == 0 else float(rows["intended"][rows["stage"] == index].min()) / NS
        self.start = starts(self.rows, self.is_capped)
        self.gaps = gather(run, self.mask).values
        self.is_open = plan.open
        self.left_out = int(np.count_nonzero(self.mask & (run.records.phase != STEADY)))

    def until(self, name: str) -> Seconds:
        """Seconds from the start to an event; NaN if it did not happen."""
        return until(self.rows, self.start, name)

    @property
    def n_out(self) -> Seconds:
        return np.asarray(np.maximum(self.rows["n_out"], 0), np.float64)

    @property
    def n_in(self) -> Seconds:
        return np.asarray(np.maximum(self.rows["n_in"], 0), np.float64)

    def first_start(self) -> float:
        return float(starts(self.sent_rows, self.is_capped).min())

    def last_start(self) -> float:
        return float(starts(self.sent_rows, self.is_capped).max())

    def last_end(self) -> float:
        done = self.sent_rows["done"]
        return float(done[done != MISSING].max(initial=0)) / NS


def _stage(tool: str, run: Run, summary: Summary, index: int, stage: StageSummary | None) -> StageAs | None:
    seen = _Stage(run, index)
    if not len(seen.sent_rows):
        return None
    metrics, throughput = (summary.metrics, summary.throughput) if stage is None else (stage.metrics, stage.throughput)
    latencies, rates, duration = _TOOLS[tool](seen)
    figures = []
    for each in TOOL_FIGURES[tool]:
        if each.label in latencies:
            known = latencies[each.label]
            figures += _distribution(each.label, known, each.ours, metrics.get(each.ours), seen)
        elif each.label in rates:
            ours = _rate(throughput, each.ours)
            reason = _why_rate(each.ours, throughput, duration) if _differ(rates[each.label], ours) else ""
            figures.append(Figure(each.label, "", rates[each.label], ours, each.ours, reason))
    name = "" if stage is None else stage.name
    return StageAs(name, len(seen.rows), len(seen.sent_rows) - len(seen.rows), duration, tuple(figures))


def _vllm_bench(stage: _Stage) -> Seen:
    ttft, e2el, n_out = stage.until("first_token"), stage.until("last_token"), stage.n_out
    e2el = np.where(np.isnan(e2el), stage.until("done"), e2el)
    tpot = np.where(n_out > 1, (e2el - ttft) / np.maximum(n_out - 1, 1), np.nan)
    duration = stage.last_end() - min(stage.begin, stage.first_start())
    latencies: dict[str, Values] = {"TTFT": ttft, "TPOT": tpot, "ITL": stage.gaps, "E2EL": e2el}
    rates: dict[str, float | None] = {
        "Request throughput": _per(len(stage.rows), duration),
        "Output token throughput": _per(exact.total(n_out), duration),
        "Total token throughput": _per(exact.total(n_out) + exact.total(stage.n_in), duration),
    }
    return latencies, rates, duration


def _inference_perf(stage: _Stage) -> Seen:
    rows, n_out = stage.rows, stage.n_out
    duration = stage.last_end() - stage.first_start()
    sending = stage.last_start() - stage.first_start()
    per_request = inference_perf_latencies(rows, stage.start, n_out, rows["chunk_count"], is_exact=True)
    latencies: dict[str, Values] = {**per_request, "inter_token_latency": stage.gaps}
    rates: dict[str, float | None] = {
        "requests_per_sec": _per(len(rows), duration),
        "output_tokens_per_sec": _per(exact.total(n_out), duration),
        "input_tokens_per_sec": _per(exact.total(stage.n_in), duration),
        "total_tokens_per_sec": _per(exact.total(n_out) + exact.total(stage.n_in), duration),
        "achieved_rate": _per(len(stage.sent_rows), sending) or 0.0,
    }
    return latencies, rates, duration


_TOOLS: dict[str, Callable[[_Stage], Seen]] = {
    "vllm-bench": _vllm_bench,
    "inference-perf": _inference_perf,
}


def _per(count: object, seconds: float) -> float | None:
    return float(count) / seconds if seconds > 0 else None  # type: ignore[arg-type]


def _distribution(label: str, values: Values, ours: str, own: Distribution | None, stage: _Stage) -> list[Figure]:
    """The mean, median and p99 of a latency, with percentiles as numpy interpolates them."""
    if values.dtype.kind == "f":
        values = values[~np.isnan(values)]
        scale = 1.0
    else:
        scale = 1 / NS  # gaps, in ns
    theirs: dict[str, float | None] = dict.fromkeys(STATISTICS)
    if len(values):
        mean = exact.mean(values)
        median, p99 = interpolated(values, (0.5, 0.99))
        theirs = {"mean": mean * scale, "median": median * scale, "p99": p99 * scale}
    figures: list[Figure] = []
    for statistic, name in STATISTICS.items():
        value = own.value(name) if own is not None and own.count else None
        reason = ""
        if _differ(theirs[statistic], value):
            shared = _why_latency(label, ours, stage) if statistic == "mean" or figures[0].reason else ""
            reason = "; ".join(filter(None, (shared, "" if statistic == "mean" else _INTERPOLATED)))
        figures.append(Figure(label, statistic, theirs[statistic], value, f"{ours}.{name}", reason))
    return figures


def _rate(throughput: Throughput, name: str) -> float | None:
    value: float | None = getattr(throughput, name.removeprefix("throughput."))
    return value


# --- reasons ---------------------------------------------------------------------------------------------------------


def _differ(theirs: float | None, ours: float | None) -> bool:
    return theirs is not None and ours is not None and abs(theirs - ours) > _SAME * max(abs(theirs), abs(ours))


def _why_latency(label: str, ours: str, stage: _Stage) -> str:
    """The reasons that apply to this stage."""
    reasons = []
    if ours in ("ttft", "e2e", "ntpot"):
        rows = stage.rows
        moved = exact.mean(stage.start - (rows["intended"] if stage.is_open else rows["sent"]) / NS)
        if stage.is_open and moved > 0:
            reasons.append(
                f"it counts from the call of its HTTP client, on average {format_seconds(moved)} after the intended instant"
            )
        elif not stage.is_open and moved < 0:
            reasons.append(f"it includes the wait for a connection, on average {format_seconds(-moved)}")
    if label == "E2EL":
        reasons.append("it ends at the last token, not at the last byte")
    if ours == "tpot":
        reasons.append("it divides by all output tokens - 1, not by those after the first chunk")
    if ours in ("ttft", "tpot") and label.startswith("time_") and (stage.rows["chunk_count"] < 2).any():
        reasons.append("it leaves out responses in one chunk")
    if stage.left_out:
        reasons.append(f"it counts warm-up, cool-down and the start of users too ({stage.left_out:,} requests)")
    return "; ".join(reasons) or "it counts over all requests of the stage"


def _why_rate(name: str, throughput: Throughput, duration: float) -> str:
    if name == "throughput.offered":
        return "it counts from the first start to the last, of all requests; ours leaves out warm-up and cool-down"
    span = f", ours over {format_seconds(throughput.span)} without them" if throughput.span else ""
    return f"it counts over {format_seconds(duration)}, with the time in which the load fills and drains{span}"
