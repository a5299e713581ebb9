"""The final report in the terminal: the same bytes for the same run and width, whoever prints it and where."""

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
from inferometer.report.width import WIDTH, bare, fitted

LATENCIES = ("ttft", "itl", "tpot", "e2e")
SERVICE = ("ttft_service", "e2e_service")
TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "tokens_per_chunk")
COLUMNS = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max"}
CONFIDENCE = "p99, 95 % CI"
STAGE_COLUMNS = (("ttft", "p50"), ("ttft", "p99"), ("itl", "p50"), ("itl", "p99"), ("e2e", "p99"))
STAGE_COLUMNS_OF_ONE_ANSWER = tuple(("e2e", column) for column in ("mean", "p50", "p90", "p95", "p99"))
DISPENSABLE = {
    "latency": (CONFIDENCE, "p99.9", "p90", "p95", "mean"),
    "tokens": ("p90", "min", "total/s"),
    "stages": ("itl p50", "e2e p90", "itl p99", "e2e mean", "ttft p50", "e2e p95"),
}
"""Columns that a narrow table leaves out, the first first."""
MARK = "*"
"""Beside a percentile of too few values."""


def paper(color: bool, width: int = WIDTH) -> Console:
    """What a report is written on: the same for the same report, whatever the terminal."""
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


def render(run: Run, summary: Summary, explain: bool = False, color: bool = False, width: int = WIDTH) -> str:
    """The report of `run`, whose `summary` this is; `explain` adds what every name means."""
    console = paper(color, width)
    with console.capture() as capture:
        for part in _parts(run, summary, explain, width):
            console.print(Padding(part, (0, 0, 1, 1)))
        console.print(Text(f" {run.folder}", style="dim"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _parts(run: Run, summary: Summary, explain: bool, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = [_title(run, summary), _verdict(summary, width), _headline(run, summary, width)]
    if summary.metrics["lag"].count or summary.counts.ok:
        parts.append(_latency(run, summary, width))
    if summary.breakdown is not None:
        parts.append(_breakdown(summary.breakdown))
    elif summary.no_breakdown and summary.counts.ok and _may_be_split(run):
        parts.append(
            Text.assemble(
                ("where the time went", "bold"), "   not known: ", formatting.one_line(summary.no_breakdown, 1000)
            )
        )
    if any(summary.metrics[name].count for name in TOKENS):
        parts.append(_tokens(summary, width))
    if summary.failures:
        parts.append(_failures(summary, width))
    if summary.stages:
        parts.append(_stages(run, summary, width))
    if explain:
        parts.append(_definitions(summary))
    return parts


# --- the head --------------------------------------------------------------------------------------------------------


def _title(run: Run, summary: Summary) -> RenderableType:
    manifest = run.manifest
    model = settings.text(manifest, "server", "model")
    parts = [formatting.target_words(manifest), *([str(model)] if model else []), formatting.api_words(manifest)]
    load = [formatting.load_words(stage) for stage in manifest.plan]
    shown = load[0] if len(load) == 1 else f"{len(load)} stages"
    return Group(
        Text(formatting.one_line(" · ".join(parts), WIDTH - 2), style="bold"),
        Text(
            formatting.one_line(" · ".join([shown, *([summary.started] if summary.started else [])]), WIDTH - 2),
            style="dim",
        ),
    )


def _verdict(summary: Summary, width: int) -> RenderableType:
    by_status = {status: [c for c in summary.checks if c.status == status] for status in ("fail", "warn", "pass")}
    tally = Text(f" {summary.verdict} ", style=f"bold white on {'green' if summary.verdict == 'VALID' else 'red'}")
    numbers = [f"{len(found)} {name}" for name, found in (
        ("failed", by_status["fail"]), ("warned", by_status["warn"]), ("passed", by_status["pass"])) if found]  # fmt: skip
    lines: list[RenderableType] = [Text.assemble(tally, f"  checks: {', '.join(numbers)}")]
    lines += [_check(check, "✗", "red", width) for check in by_status["fail"]]
    lines += [_check(check, "!", "yellow", width) for check in by_status["warn"]]
    return Group(*lines)


def _check(check: Check, sign: str, style: str, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1, style=f"bold {style}")
    grid.add_column(width=12, style=style)
    grid.add_column(width=width - 18)
    grid.add_row(sign, check.name, Text(formatting.one_line(check.message, 1000)))
    return Padding(grid, (0, 0, 0, 1))


def _headline(run: Run, summary: Summary, width: int) -> RenderableType:
    """Rates above counts, in columns; where these have no room, one after the other."""
    rows = {"throughput": _rates(run, summary), "requests": _counts(summary)}
    cancelled = summary.counts.by_failure.get(CANCELLED, 0)
    note = Text(f"of which {cancelled:,} cancelled", style="dim")
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="bold")
    if width < WIDTH:
        if cancelled:
            rows["requests"][1] = Text.assemble(rows["requests"][1], ", ", note)
        for label, parts in rows.items():
            grid.add_row(label, _flow([part for part in parts if part], width - 15))
        return grid
    for label, parts in rows.items():
        grid.add_row(label, *parts)
    if cancelled:
        grid.add_row("", "", note)
    return grid


def _rates(run: Run, summary: Summary) -> list[Text]:
    rate = summary.throughput
    shown = [_number(formatting.plain(rate.requests), "requests/s")]
    if settings.asks_for_text(run.manifest):
        shown.append(_number(formatting.plain(rate.output_tokens), "output tokens/s"))
        shown.append(_number(formatting.plain(rate.input_tokens), "input tokens/s"))
    elif settings.sends_text(run.manifest):
        shown.append(_number(formatting.plain(rate.input_tokens), "input tokens/s"))
        shown.append(Text())
    else:
        shown.append(Text() if rate.inferences is None else _number(formatting.plain(rate.inferences), "inferences/s"))
        shown.append(Text())
    return [*shown, Text(f"over {formatting.plain(summary.window.span)} s", style="dim")]


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
    """The parts one after the other, and no line broken within one of them."""
    gap, lines = Text("   "), [Text()]
    for part in parts:
        if lines[-1] and lines[-1].cell_len + gap.cell_len + part.cell_len > room:
            lines.append(Text())
        lines[-1] = Text.assemble(lines[-1], gap, part) if lines[-1] else part
    return Text("\n").join(lines)


def _number(value: str, unit: str, style: str = "") -> Text:
    return Text.assemble((value, f"bold {style}".strip()), " ", (unit, style or "dim"))


# --- the tables ------------------------------------------------------------------------------------------------------


def _latency(run: Run, summary: Summary, width: int) -> RenderableType:
    """Latencies in ms, from the intended instant where the loop is open; then the lag that stands beside them."""
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
    table = fitted(table, width, DISPENSABLE["latency"])
    shown = [summary.metrics[name] for name in [*names, *service, "lag"]]
    notes = [*_legend(names, plan), *_footnotes(shown, [str(column.header).strip() for column in table.columns])]
    return Group(table, *(Text(note, style="dim") for note in notes))


def _legend(names: list[str], plan: tuple[StagePlan, ...]) -> list[str]:
    """What the rows of these names, and that of lag, count from: it is not the same in open and in closed loop."""
    is_open, is_closed = any(stage.open for stage in plan), any(not stage.open for stage in plan)
    if "e2e" not in names:
        late, free = "lag: from the intended instant to the send", "how long a free user waited for the send"
        return [f"{late}; in closed loop {free}" if is_open and is_closed else late if is_open else f"lag: {free}"]
    which = "ttft and e2e count" if "ttft" in names else "e2e counts"
    if not is_closed:
        return [f"{which} from the intended instant, service from the send; lag is between the two"]
    if not is_open:
        return [f"{which} from the send (closed loop); lag: how long a free user waited for it"]
    return [
        f"{which} from the intended instant in open loop, from the send in closed loop",
        "service counts from the send; lag: how late that was, or how long a free user waited for it",
    ]


def _may_be_split(run: Run) -> bool:
    """Of an OpenAI-style endpoint nobody expects that it tells of its own time."""
    return bool(run.manifest.server) or not settings.sends_text(run.manifest)


def _breakdown(found: Breakdown) -> RenderableType:
    """The mean end-to-end time and what it went into."""
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
        batch = f"; {found.batch:.3g} inferences an execution" if found.batch else ""
        notes.append(f"compute: {', '.join(named)}{batch}")
    if found.source == PER_REQUEST:
        notes.append("the server told it for each request; network is the rest")
    else:
        notes.append("averages of the server's own statistics over all requests; network is the rest")
        if found.counted is not None and found.counted > found.requests:
            others = found.counted - found.requests
            notes.append(f"the server counted {others:,} requests more than these: others, or ones that failed here")
    if found.excess >= LEAST_EXCESS:
        longer = (
            f"by its own account the server took {formatting.milliseconds(found.excess)} ms longer than the client saw"
        )
        notes.append(f"{longer}: {WHY_EXCESS[found.source]}; shares are of the parts' sum")
    return Group(table, *(Text(note, style="dim") for note in notes))


def _row(table: Table, label: str, found: Distribution, style: str = "") -> None:
    """In milliseconds, all with the decimals that suit the median."""
    decimals = formatting.decimals_for(1e3 * (found.value("p50") or 0))
    low, high = (formatting.milliseconds(end, decimals) for end in found.ci.get("p99", (None, None)))
    cells = []
    for name in COLUMNS:
        mark = MARK if name in found.unsupported else ""
        shown = formatting.milliseconds(found.value(name), decimals)
        cells.append(Text.assemble(shown, (mark or " ", "yellow"), style="dim" if mark else ""))
    table.add_row(Text(label, style=style), *cells, f"{low} .. {high}")


def _footnotes(shown: list[Distribution], columns: list[str]) -> list[str]:
    """What the mark means, once for each percentile of the table's columns that bears it."""
    needs = {COLUMNS[name]: found.needs for each in shown for name, found in each.unsupported.items()}
    notes = []
    marked = [name for name in columns if name in needs]
    if marked:
        wanted = ", ".join(f"{needs[name]:,} for {name}" for name in marked)
        notes.append(f"{MARK} too few values to support it: it takes {wanted}")
    if failed := max((each.infinite for each in shown), default=0):
        notes.append(f"{failed:,} failed requests count as infinitely slow (measure.failures_as_inf)")
    return notes


def _table(title: str, columns: list[str]) -> Table:
    table = bare()
    table.add_column(title, min_width=15, no_wrap=True)
    for column in columns:
        table.add_column(f"{column} ", justify="right", no_wrap=True, min_width=8)
    return table


def _tokens(summary: Summary, width: int) -> RenderableType:
    table = _table("tokens", ["mean", "min", "p50", "p90", "p99", "max", "total/s"])
    rates = {"input_tokens": summary.throughput.input_tokens, "output_tokens": summary.throughput.output_tokens}
    for name in TOKENS:
        found = summary.metrics[name]
        if not found.count:
            continue
        cells = [formatting.count(found.value(column)) for column in ("mean", "min", "p50", "p90", "p99", "max")]
        label = {"tokens_per_chunk": "per chunk"}.get(name, name.removesuffix("_tokens"))
        table.add_row(
            label, *(f"{cell} " for cell in cells), f"{formatting.plain(rates[name])} " if name in rates else ""
        )
    sources = ", ".join(f"{count:,} by {who}" for who, count in summary.tokens_counted_by.items())
    by = {"server": "the server", "tokenizer": "the client's tokenizer", "nobody": "nobody"}
    only = [*summary.tokens_counted_by]
    source = by[only[0]] if len(only) == 1 else sources
    if not summary.metrics["output_tokens"].count and only == ["nobody"]:  # embeddings have none
        return fitted(table, width, DISPENSABLE["tokens"])
    note = Text(f"output tokens counted by {source}", style="dim")
    return Group(fitted(table, width, DISPENSABLE["tokens"]), note)


def _failures(summary: Summary, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for style, justify in (("bold", "left"), ("red", "left"), ("bold red", "right"), ("", "left")):
        table.add_column(style=style, justify=justify, no_wrap=bool(style) or width >= WIDTH)  # type: ignore[arg-type]
    for place, kind in enumerate(summary.failures):
        table.add_row(
            "" if place else "failures", kind.code, f"{kind.count:,}", Text(formatting.one_line(kind.message, 60))
        )
    return table


def _stages(run: Run, summary: Summary, width: int) -> RenderableType:
    streamed = any(stage.metrics["ttft"].count for stage in summary.stages)
    columns = STAGE_COLUMNS if streamed or settings.asks_for_text(run.manifest) else STAGE_COLUMNS_OF_ONE_ANSWER
    table = _table("stages, ms", ["ok", "failed", "req/s", *(f"{name} {column}" for name, column in columns)])
    for stage, plan in zip(summary.stages, run.manifest.plan, strict=True):
        shown = [(stage.metrics[name], column) for name, column in columns]
        cells = [
            formatting.milliseconds(found.value(column)) + (MARK if column in found.unsupported else " ")
            for found, column in shown
        ]
        counts = (f"{stage.counts.ok:,} ", f"{stage.counts.failed + stage.counts.dropped:,} ")
        label = formatting.one_line(plan.name or f"{stage.stage + 1} {plan.type}", 24)
        table.add_row(label, *counts, f"{formatting.plain(stage.throughput.requests)} ", *cells)
    return fitted(table, width, DISPENSABLE["stages"])


def _definitions(summary: Summary) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    grid.add_row("definitions", "")
    for name, definition in summary.definitions.items():
        grid.add_row(name, Text(definition))
    return grid
