"""The final report in the terminal: the same bytes for the same run and width, no matter where it is printed."""

import io

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.analysis import settings
from inferometer.analysis.breakdown import LEAST_EXCESS, PER_REQUEST, WHY_EXCESS, Breakdown
from inferometer.analysis.checks import Check
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.summary import Summary
from inferometer.records import CANCELLED, Run, StagePlan
from inferometer.report import formatting
from inferometer.report.histogram import histograms
from inferometer.report.slo import objectives
from inferometer.report.width import WIDTH, bare, fitted

LATENCIES = ("ttft", "itl", "tpot", "e2e")
SERVICE = ("ttft_service", "e2e_service")
TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "tokens_per_chunk")
COLUMNS = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max"}
CONFIDENCE = "p99, 95 % CI"
STAGE_COLUMNS = (("ttft", "p50"), ("ttft", "p99"), ("itl", "p50"), ("itl", "p99"), ("e2e", "p99"))
STAGE_COLUMNS_NOT_STREAMED = tuple(("e2e", column) for column in ("mean", "p50", "p90", "p95", "p99"))
OPTIONAL = {
    "latency": (CONFIDENCE, "p99.9", "p90", "p95", "mean"),
    "tokens": ("p90", "min", "total/s"),
    "stages": ("itl p50", "e2e p90", "itl p99", "e2e mean", "ttft p50", "e2e p95"),
}
"""Columns that a narrow table leaves out, the first of them first."""
MARK = "*"
"""Marks a percentile of too few values."""


def new_console(color: bool, width: int = WIDTH) -> Console:
    """A console that renders to a string, in the same way for every terminal."""
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )


def render(
    run: Run,
    summary: Summary,
    explain: bool = False,
    color: bool = False,
    width: int = WIDTH,
    histogram: bool = False,
) -> str:
    """Render the report of a run from its summary; `explain` adds all definitions, `histogram` adds histograms."""
    console = new_console(color, width)
    with console.capture() as capture:
        for part in _parts(run, summary, explain, width, histogram):
            console.print(Padding(part, (0, 0, 1, 1)))
        console.print(Text(f" {run.folder}", style="dim"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _parts(run: Run, summary: Summary, explain: bool, width: int, histogram: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [_title(run, summary), _verdict(run, summary, width), _headline(run, summary, width)]
    if summary.metrics and (summary.metrics["lag"].count or summary.counts.ok):
        parts.append(_latency(run, summary, width))
    if histogram:
        parts += histograms(run, width)
    if summary.breakdown is not None:
        parts.append(_breakdown(summary.breakdown))
    elif summary.no_breakdown and summary.counts.ok and _breakdown_is_expected(run):
        reason = formatting.one_line(summary.no_breakdown, 1000)
        parts.append(Text.assemble(("where the time went", "bold"), "   not known: ", reason))
    if summary.metrics and any(summary.metrics[name].count for name in TOKENS):
        parts.append(_tokens(summary, width))
    if summary.failures:
        parts.append(_failures(summary, width))
    if summary.stages:
        parts.append(_stages(run, summary, width))
    if explain:
        parts.append(_definitions(summary))
    if summary.slos:
        parts.append(objectives(summary, width))
    return parts


# --- title, verdict, throughput and counts ---------------------------------------------------------------------------


def _title(run: Run, summary: Summary) -> RenderableType:
    manifest = run.manifest
    model = settings.text(manifest, "server", "model")
    parts = [formatting.describe_target(manifest), *([str(model)] if model else []), formatting.describe_api(manifest)]
    stages = manifest.plan
    load = formatting.describe_load(stages[0]) if len(stages) == 1 else f"{len(stages)} stages"
    details = [load, *([summary.started] if summary.started else [])]
    return Group(
        Text(formatting.one_line(" · ".join(parts), WIDTH - 2), style="bold"),
        Text(formatting.one_line(" · ".join(details), WIDTH - 2), style="dim"),
    )


def _verdict(run: Run, summary: Summary, width: int) -> RenderableType:
    by_status = {status: [c for c in summary.checks if c.status == status] for status in ("fail", "warn", "pass")}
    verdict = Text(f" {summary.verdict} ", style=f"bold white on {'green' if summary.verdict == 'VALID' else 'red'}")
    names = {"fail": "failed", "warn": "warned", "pass": "passed"}
    counts = ", ".join(f"{len(by_status[status])} {name}" for status, name in names.items() if by_status[status])
    lines: list[RenderableType] = [Text.assemble(verdict, f"  checks: {counts}")]
    lines += [_check(check, "✗", "red", width) for check in by_status["fail"]]
    lines += [_check(check, "!", "yellow", width) for check in by_status["warn"]]
    for name, why in run.manifest.observer_errors.items():
        lines.append(Text(formatting.one_line(f"observer {name}: {why}", 1000), style="yellow"))
    return Group(*lines)


def _check(check: Check, sign: str, style: str, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1, style=f"bold {style}")
    grid.add_column(width=12, style=style)
    grid.add_column(width=width - 18)
    grid.add_row(sign, check.name, Text(formatting.one_line(check.message, 1000)))
    return Padding(grid, (0, 0, 0, 1))


def _headline(run: Run, summary: Summary, width: int) -> RenderableType:
    """Rates above counts: in columns, or one after the other if there is no room for columns."""
    rates = _rates(run, summary)
    rows = [("throughput" if index == 0 else "", parts) for index, parts in enumerate(rates) if parts]
    counts = _counts(summary)
    rows.append(("requests", counts))
    cancelled = summary.counts.by_failure.get(CANCELLED, 0)
    note = Text(f"of which {cancelled:,} cancelled", style="dim")
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="bold")
    if width < WIDTH:
        if cancelled:
            counts[1] = Text.assemble(counts[1], ", ", note)
        for label, parts in rows:
            grid.add_row(label, _flow([part for part in parts if part], width - 15))
        return grid
    for label, parts in rows:
        grid.add_row(label, *parts)
    if cancelled:
        grid.add_row("", "", note)
    return grid


def _rates(run: Run, summary: Summary) -> list[list[Text]]:
    """Requests per second, then what was in them per second. Only an open loop offers a rate of its own."""
    rate = summary.throughput
    requests = [_number(formatting.number(rate.requests), "requests/s completed")]
    if any(stage.open for stage in run.manifest.plan):
        requests.insert(0, _number(formatting.number(rate.offered), "requests/s offered"))
    requests.append(Text(f"over {formatting.number(summary.window.span)} s", style="dim"))
    if settings.receives_text(run.manifest):
        contents = {"output tokens/s": rate.output_tokens, "input tokens/s": rate.input_tokens}
    elif settings.sends_text(run.manifest):
        contents = {"input tokens/s": rate.input_tokens}
    else:
        contents = {} if rate.inferences is None else {"inferences/s": rate.inferences}
    return [requests, [_number(formatting.number(value), unit) for unit, value in contents.items()]]


def _counts(summary: Summary) -> list[Text]:
    counts = summary.counts
    left_out = sum(summary.window.requests.values()) - summary.window.requests["steady"]
    return [
        _number(f"{counts.ok:,}", "ok"),
        _number(f"{counts.failed:,}", "failed", "red" if counts.failed else ""),
        _number(f"{counts.dropped:,}", "dropped", "red" if counts.dropped else ""),
        Text(f"{left_out:,} left out" if left_out else "", style="dim"),
    ]


def _flow(parts: list[Text], room: int) -> Text:
    """Put the parts one after the other, with line breaks only between them."""
    gap, lines = Text("   "), [Text()]
    for part in parts:
        if lines[-1] and lines[-1].cell_len + gap.cell_len + part.cell_len > room:
            lines.append(Text())
        lines[-1] = Text.assemble(lines[-1], gap, part) if lines[-1] else part
    return Text("\n").join(lines)


def _number(value: str, unit: str, style: str = "") -> Text:
    return Text.assemble((value, f"bold {style}".strip()), " ", (unit, style or "dim"))


# --- latency ---------------------------------------------------------------------------------------------------------


def _latency(run: Run, summary: Summary, width: int) -> RenderableType:
    """Latencies in ms, then the lag, which tells how much of them is due to late sends."""
    plan = run.manifest.plan
    names = [name for name in LATENCIES if summary.metrics[name].count]
    service = [name for name in SERVICE if any(stage.open for stage in plan) and summary.metrics[name].count]
    table = _table("latency, ms", [*COLUMNS.values(), CONFIDENCE])
    for name in names:
        _row(table, name, summary.metrics[name], style="bold")
    for name in service:
        _row(table, name.replace("_", " "), summary.metrics[name])
    if summary.metrics["lag"].count:
        _row(table, "lag", summary.metrics["lag"])
    table = fitted(table, width, OPTIONAL["latency"])
    shown = [summary.metrics[name] for name in [*names, *service, "lag"]]
    notes = [*_legend(names, plan), *_footnotes(shown, [str(column.header).strip() for column in table.columns])]
    return Group(table, *(Text(note, style="dim") for note in notes))


def _legend(names: list[str], plan: tuple[StagePlan, ...]) -> list[str]:
    """Say from when the rows count: in open loop the intended send time, in closed loop the send."""
    is_open, is_closed = any(stage.open for stage in plan), any(not stage.open for stage in plan)
    if "e2e" not in names:
        late, idle = "lag: from the intended send time to the send", "how long a free user waited for the send"
        return [f"{late}; in closed loop {idle}" if is_open and is_closed else late if is_open else f"lag: {idle}"]
    which = "ttft and e2e count" if "ttft" in names else "e2e counts"
    if not is_closed:
        return [f"{which} from the intended send time, service from the actual send; lag is the difference"]
    if not is_open:
        return [f"{which} from the send (closed loop); lag: how long a free user waited for it"]
    return [
        f"{which} from the intended send time in open loop, from the send in closed loop",
        "service counts from the send; lag: how late the send was, or how long a free user waited for it",
    ]


def _row(table: Table, label: str, found: Distribution, style: str = "") -> None:
    """Add a row in milliseconds, all with the decimals that suit the median."""
    decimals = formatting.decimals_for(1e3 * (found.value("p50") or 0))
    low, high = (formatting.milliseconds(end, decimals) for end in found.ci.get("p99", (None, None)))
    cells = []
    for name in COLUMNS:
        mark = MARK if name in found.unsupported else ""
        shown = formatting.milliseconds(found.value(name), decimals)
        cells.append(Text.assemble(shown, (mark or " ", "yellow"), style="dim" if mark else ""))
    table.add_row(Text(label, style=style), *cells, f"{low} .. {high}")


def _footnotes(shown: list[Distribution], columns: list[str]) -> list[str]:
    """Explain the mark for each column of the table that has it, and how failures are counted."""
    needs = {COLUMNS[name]: found.needs for each in shown for name, found in each.unsupported.items()}
    notes = []
    marked = [name for name in columns if name in needs]
    if marked:
        wanted = ", ".join(f"{needs[name]:,} for {name}" for name in marked)
        notes.append(f"{MARK} too few values: it needs {wanted}")
    if failed := max((each.infinite for each in shown), default=0):
        notes.append(f"{failed:,} failed requests count as infinitely slow (measure.failures_as_inf)")
    return notes


def _table(title: str, columns: list[str]) -> Table:
    table = bare()
    table.add_column(title, min_width=15, no_wrap=True)
    for column in columns:
        table.add_column(f"{column} ", justify="right", no_wrap=True, min_width=8)
    return table


# --- where the time went ---------------------------------------------------------------------------------------------


def _breakdown_is_expected(run: Run) -> bool:
    """OpenAI-style endpoints do not report their own time, so its absence is not worth a line."""
    return bool(run.manifest.server) or not settings.sends_text(run.manifest)


def _breakdown(found: Breakdown) -> RenderableType:
    """The parts of the mean end-to-end time."""
    parts = {"client": found.client, "network": found.network, "queue": found.queue, "compute": found.compute}
    inner = {
        "input": found.compute_input,
        "inference": found.compute_infer,
        "output": found.compute_output,
        "cache": found.cache,
    }
    table = _table("where the time went, ms", ["e2e", *parts])
    table.add_row("mean", *(f"{formatting.milliseconds(value)} " for value in (found.e2e, *parts.values())))
    whole = found.e2e + found.excess
    table.add_row("share", "", *(f"{value / whole:.0%} " if whole else "" for value in parts.values()))
    notes = []
    if any(inner.values()):
        named = (f"{name} {formatting.milliseconds(value)}" for name, value in inner.items() if value)
        batch = f"; {found.batch:.3g} inferences per execution" if found.batch else ""
        notes.append(f"compute: {', '.join(named)}{batch}")
    if found.source == PER_REQUEST:
        notes.append("queue and compute: as the server reported them for each request; network is the rest")
    else:
        notes.append("queue and compute: averages of the server's statistics over all requests; network is the rest")
        if found.counted is not None and found.counted > found.requests:
            others = found.counted - found.requests
            notes.append(f"the server counted {others:,} more requests: from other clients, or ones that failed here")
    if found.excess >= LEAST_EXCESS:
        excess = formatting.milliseconds(found.excess)
        notes.append(
            f"the server reports {excess} ms more than the client saw: {WHY_EXCESS[found.source]}; "
            "shares are of the sum of the parts"
        )
    return Group(table, *(Text(note, style="dim") for note in notes))


# --- tokens, failures, stages, definitions ---------------------------------------------------------------------------


def _tokens(summary: Summary, width: int) -> RenderableType:
    table = _table("tokens", ["mean", "min", "p50", "p90", "p99", "max", "total/s"])
    rates = {"input_tokens": summary.throughput.input_tokens, "output_tokens": summary.throughput.output_tokens}
    for name in TOKENS:
        found = summary.metrics[name]
        if not found.count:
            continue
        cells = [formatting.count(found.value(column)) for column in ("mean", "min", "p50", "p90", "p99", "max")]
        label = {"tokens_per_chunk": "per chunk"}.get(name, name.removesuffix("_tokens"))
        total = f"{formatting.number(rates[name])} " if name in rates else ""
        table.add_row(label, *(f"{cell} " for cell in cells), total)
    shown = fitted(table, width, OPTIONAL["tokens"])
    has_no_output = not summary.metrics["output_tokens"].count and list(summary.tokens_counted_by) == ["nobody"]
    if has_no_output:  # embeddings
        return shown
    return Group(shown, Text(_token_source(summary), style="dim"))


def _token_source(summary: Summary) -> str:
    """Say who counted the output tokens."""
    counted = summary.tokens_counted_by
    names = {"server": "by the server", "tokenizer": "by the client's tokenizer", "nobody": "by neither side"}
    if len(counted) == 1:
        only = next(iter(counted))
        return "output tokens were not counted" if only == "nobody" else f"output tokens counted {names[only]}"
    return "output tokens counted " + ", ".join(f"{names[who]}: {count:,}" for who, count in counted.items())


def _failures(summary: Summary, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for style, justify in (("bold", "left"), ("red", "left"), ("bold red", "right"), ("", "left")):
        table.add_column(style=style, justify=justify, no_wrap=bool(style) or width >= WIDTH)  # type: ignore[arg-type]
    for index, kind in enumerate(summary.failures):
        message = Text(formatting.one_line(kind.message, 60))
        table.add_row("" if index else "failures", kind.code, f"{kind.count:,}", message)
    return table


def _stages(run: Run, summary: Summary, width: int) -> RenderableType:
    streamed = any(stage.metrics["ttft"].count for stage in summary.stages)
    columns = STAGE_COLUMNS if streamed or settings.receives_text(run.manifest) else STAGE_COLUMNS_NOT_STREAMED
    table = _table("stages, ms", ["ok", "failed", "req/s", *(f"{name} {column}" for name, column in columns)])
    for stage, plan in zip(summary.stages, run.manifest.plan, strict=True):
        shown = [(stage.metrics[name], column) for name, column in columns]
        cells = [
            formatting.milliseconds(found.value(column)) + (MARK if column in found.unsupported else " ")
            for found, column in shown
        ]
        counts = (f"{stage.counts.ok:,} ", f"{stage.counts.failed + stage.counts.dropped:,} ")
        label = formatting.one_line(plan.name or f"{stage.stage + 1} {plan.type}", 24)
        table.add_row(label, *counts, f"{formatting.number(stage.throughput.requests)} ", *cells)
    return fitted(table, width, OPTIONAL["stages"])


def _definitions(summary: Summary) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    grid.add_row("definitions", "")
    for name, definition in summary.definitions.items():
        grid.add_row(name, Text(definition))
    return grid
