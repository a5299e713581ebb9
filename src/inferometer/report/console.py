"""The final report in the terminal: the same bytes for the same run and width, no matter where it is printed."""

import io
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.analysis import settings
from inferometer.analysis.breakdown import LEAST_EXCESS, PER_REQUEST, WHY_EXCESS, Breakdown
from inferometer.analysis.percentiles import label_of
from inferometer.analysis.summary import Summary
from inferometer.records import CANCELLED, Run
from inferometer.report import formatting, groups, tables
from inferometer.report.cost import cost
from inferometer.report.histogram import histograms
from inferometer.report.latency import latency
from inferometer.report.resources import resources
from inferometer.report.safe_console import SafeConsole
from inferometer.report.server import server
from inferometer.report.sessions import sessions, sessions_by_stage
from inferometer.report.slo import objectives
from inferometer.report.stages import describe, stages
from inferometer.report.tail import tail_notes, why_slow
from inferometer.report.verdict import verdict
from inferometer.report.width import WIDTH, fitted

TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "tokens_per_chunk")
_OPTIONAL = ("p90", "min", "total/s")
"""Columns that a narrow table of tokens leaves out, the first of them first."""


def new_console(color: bool, width: int = WIDTH) -> Console:
    """A console that renders to a string, in the same way for every terminal."""
    return SafeConsole(
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
    why: bool = False,
) -> str:
    """Render the report of a run from its summary; `explain` adds all definitions, `histogram` adds histograms, `why` adds why slow
    requests were slow."""
    console = new_console(color, width)
    with console.capture() as capture:
        for part in _parts(run, summary, explain, width, histogram, why):
            console.print(Padding(part, (0, 0, 1, 1)))
        console.print(Text(f" {run.folder}", style="dim"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _parts(run: Run, summary: Summary, explain: bool, width: int, histogram: bool, why: bool) -> list[RenderableType]:
    parts: list[RenderableType] = [_title(run, summary), verdict(run, summary, width), _headline(run, summary, width)]
    if summary.overload is not None and summary.overload.status == "overloaded":
        parts.append(Text.assemble(("latency", "bold"), "   ", (describe(summary.overload), "red")))
    elif summary.metrics and (summary.metrics["lag"].count or summary.counts.ok):
        parts.append(latency(run, summary, width))
    if histogram:
        parts += histograms(run, width)
    if why:
        parts.append(why_slow(summary, width))
    if summary.breakdown is not None:
        parts.append(_breakdown(summary.breakdown))
    elif summary.no_breakdown and summary.counts.ok and _breakdown_is_expected(run):
        reason = formatting.one_line(summary.no_breakdown, 1000)
        parts.append(Text.assemble(("where the time went", "bold"), "   not known: ", reason))
    if summary.metrics and any(summary.metrics[name].count for name in TOKENS):
        parts.append(_tokens(run, summary, width))
    if summary.sessions is not None:
        parts.append(sessions(summary.sessions, width))
    elif by_stage := [(stage.name, stage.sessions) for stage in summary.stages if stage.sessions is not None]:
        parts.append(sessions_by_stage(by_stage, width))
    if summary.failures:
        parts.append(_failures(summary, width))
    parts += _parts_of_the_run(run, summary, width)
    parts += [Text(formatting.one_line(note, 1000), style="yellow") for note in run.manifest.outcome.notes]
    parts += [Text(note, style="yellow") for note in ([] if why else tail_notes(summary))]
    if explain:
        parts.append(_definitions(summary))
    if summary.slos:
        parts.append(objectives(summary, width))
    return parts


def _parts_of_the_run(run: Run, summary: Summary, width: int) -> list[RenderableType]:
    """A table for each way in which the run is divided (stages, traffic classes, replicas), and for what was observed beside it."""
    by_part: dict[Callable[[Run, Summary, int], RenderableType], object] = {
        stages: summary.stages,
        groups.classes: summary.classes,
        groups.replicas: summary.replicas,
        server: summary.server,
        resources: summary.resources,
        cost: summary.efficiency or summary.pareto,
    }
    return [table(run, summary, width) for table, rows in by_part.items() if rows]


# --- title, verdict, throughput and counts ---------------------------------------------------------------------------


def _title(run: Run, summary: Summary) -> RenderableType:
    manifest = run.manifest
    model = settings.text(manifest, "server", "model")
    parts = [formatting.describe_target(manifest), *([str(model)] if model else []), formatting.describe_api(manifest)]
    stages = manifest.plan
    load = formatting.describe_load(stages[0]) if len(stages) == 1 else f"{len(stages)} stages"
    details = [word for word in (load, formatting.describe_part(manifest), summary.started) if word]
    nodes = formatting.describe_nodes(manifest)
    return Group(
        Text(formatting.one_line(" · ".join(parts), WIDTH - 2), style="bold"),
        Text(formatting.one_line(" · ".join(details), WIDTH - 2), style="dim"),
        *([Text(formatting.one_line(nodes, WIDTH - 2), style="dim")] if nodes else []),
    )


def _headline(run: Run, summary: Summary, width: int) -> RenderableType:
    """Rates above counts, as many of them in a line as there is room for."""
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="bold")
    for index, parts in enumerate(_rates(run, summary)):
        if parts:
            grid.add_row("" if index else "throughput", tables.flow(parts, width - 15))
    if remark := _rates_note(summary):
        grid.add_row("", Text(remark, style="dim"))
    grid.add_row("requests", tables.flow(_counts(summary), width - 15))
    for index, note in enumerate(formatting.data_notes(run.manifest)):
        grid.add_row("" if index else "data", Text(formatting.one_line(note, 300), style="dim"))
    return grid


def _rates(run: Run, summary: Summary) -> list[list[Text]]:
    """Requests per second, then what was in them per second, then their intervals. Only an open loop offers a rate of its own."""
    rate = summary.throughput
    requests = [_number(formatting.number(rate.requests), "requests/s completed")]
    if any(stage.open for stage in run.manifest.plan):
        requests.insert(0, _number(formatting.number(rate.offered), "requests/s offered"))
    requests.append(_number(formatting.number(rate.in_flight), "in flight on average"))
    if settings.receives_text(run.manifest):
        contents = {"output tokens/s": rate.output_tokens, "input tokens/s": rate.input_tokens}
    elif settings.sends_text(run.manifest):
        contents = {"input tokens/s": rate.input_tokens}
    else:
        contents = {} if rate.inferences is None else {"inferences/s": rate.inferences}
    return [requests, [_number(formatting.number(value), unit) for unit, value in contents.items()]]


def _rates_note(summary: Summary) -> str:
    """How long the rates count over, and their intervals; or why there are none."""
    rate = summary.throughput
    if rate.reason:
        return f"no rate: {rate.reason}"
    ends = {
        unit: " .. ".join(map(formatting.number, rate.ci[name]))
        for name, unit in {"requests": "requests/s", "output_tokens": "output tokens/s"}.items()
        if rate.ci.get(name, (None, None)) != (None, None)
    }
    intervals = "; 95 % CI " + ", ".join(f"{both} {unit}" for unit, both in ends.items()) if ends else ""
    return f"over {formatting.number(rate.span)} s{intervals}" if rate.span else ""


def _counts(summary: Summary) -> list[Text]:
    counts, phases = summary.counts, summary.window.requests
    cancelled = counts.by_failure.get(CANCELLED, 0)
    failed = _number(f"{counts.failed:,}", "failed", "red" if counts.failed else "")
    if cancelled:
        failed.append(f", of which {cancelled:,} cancelled", "dim")
    remarks = {
        f"{counts.retried:,} sent twice": counts.retried,
        f"{phases.get('start', 0):,} while users started": phases.get("start", 0),
        f"{phases['warmup'] + phases['cooldown']:,} left out": phases["warmup"] + phases["cooldown"],
    }
    return [
        _number(f"{counts.ok:,}", "ok"),
        failed,
        _number(f"{counts.dropped:,}", "dropped", "red" if counts.dropped else ""),
        *(Text(remark, style="dim") for remark, number in remarks.items() if number),
    ]


def _number(value: str, unit: str, style: str = "") -> Text:
    return Text.assemble((value, f"bold {style}".strip()), " ", (unit, style or "dim"))


# --- where the time went ---------------------------------------------------------------------------------------------


def _breakdown_is_expected(run: Run) -> bool:
    """OpenAI-style endpoints and engines without a server do not report their own time, so its absence is not worth a line."""
    has_server = bool(run.manifest.server) and not settings.is_in_process(run.manifest)
    return has_server or not settings.sends_text(run.manifest)


_OVERHEAD = "overhead: network and server"
_PROTOCOL = "protocol: the rest of the server's time"


def _breakdown(found: Breakdown) -> RenderableType:
    """The parts of the mean end-to-end time."""
    outside = {"network": found.network, "protocol": found.protocol}
    known = {name: value for name, value in outside.items() if value is not None} or {"overhead": found.overhead}
    parts = {"client": found.client, **known, **found.reported}
    inner = {
        "input": found.compute_input,
        "inference": found.compute_infer,
        "output": found.compute_output,
        "cache": found.cache,
    }
    table = tables.table("where the time went, ms", ["e2e", *parts])
    table.add_row("mean", *(f"{formatting.milliseconds(value)} " for value in (found.e2e, *parts.values())))
    whole = found.e2e + found.excess
    table.add_row("share", "", *(f"{value / whole:.0%} " if whole else "" for value in parts.values()))
    notes = []
    if any(inner.values()):
        named = (f"{name} {formatting.milliseconds(value)}" for name, value in inner.items() if value)
        batch = f"; {found.batch:.3g} inferences per execution" if found.batch else ""
        notes.append(f"compute: {', '.join(named)}{batch}")
    if found.source == PER_REQUEST:
        outside_of = _OVERHEAD if "overhead" in known else _PROTOCOL
        notes.append(f"{' and '.join(found.reported) or 'total'}: by the server, per request; {outside_of}")
    else:
        notes.append(f"queue and compute: by the server, averages of all requests; {_OVERHEAD}")
        if found.counted is not None and found.counted > found.requests:
            others = found.counted - found.requests
            notes.append(f"the server counted {others:,} more requests: from other clients, or ones that failed here")
    if found.rtt is not None:
        notes.append(f"shortest round trip, by the kernel: {formatting.milliseconds(found.rtt)} ms")
    if any(value < 0 for value in known.values()):
        notes.append("a negative mean: the server's clock and the client's disagree by at least that much")
    if found.excess >= LEAST_EXCESS:
        excess = formatting.milliseconds(found.excess)
        notes.append(
            f"the server reports {excess} ms more than the client saw: {WHY_EXCESS[found.source]}; "
            "shares are of the sum of the parts"
        )
    return Group(table, *(Text(note, style="dim") for note in notes))


# --- tokens, failures, stages, definitions ---------------------------------------------------------------------------


def _tokens(run: Run, summary: Summary, width: int) -> RenderableType:
    columns = ("mean", "min", *(settings.percentiles(run.manifest) or ("p50", "p90", "p99")), "max")
    table = tables.table("tokens", [*map(label_of, columns), "total/s"])
    rates = {"input_tokens": summary.throughput.input_tokens, "output_tokens": summary.throughput.output_tokens}
    for name in TOKENS:
        found = summary.metrics[name]
        if not found.count:
            continue
        cells = [formatting.count(found.value(column)) for column in columns]
        label = {"tokens_per_chunk": "per chunk"}.get(name, name.removesuffix("_tokens"))
        total = f"{formatting.number(rates[name])} " if name in rates else ""
        table.add_row(label, *(f"{cell} " for cell in cells), total)
    shown = fitted(table, width, _OPTIONAL)
    has_no_output = not summary.metrics["output_tokens"].count and list(summary.tokens_counted_by) == ["nobody"]
    if has_no_output:  # embeddings
        return shown
    return Group(shown, Text(_token_source(summary), style="dim"))


_COUNTED = {
    "server": "by the server",
    "tokenizer": "by the client's tokenizer",
    "chunks": "as chunks, at least one token each",
    "nobody": "by neither side",
}


def _token_source(summary: Summary) -> str:
    """Say who counted the output tokens, and the input tokens if it was somebody else."""
    output, input = summary.tokens_counted_by, summary.input_tokens_counted_by
    text = _counted("output tokens", output)
    is_known = summary.metrics["input_tokens"].count and any(who != "nobody" for who in input)
    return f"{text}; {_counted('input tokens', input)}" if is_known and input != output else text


def _counted(what: str, by: dict[str, int]) -> str:
    if len(by) == 1:
        only = next(iter(by))
        return f"{what} were not counted" if only == "nobody" else f"{what} counted {_COUNTED[only]}"
    return f"{what} counted " + ", ".join(f"{_COUNTED[who]}: {count:,}" for who, count in by.items())


def _failures(summary: Summary, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for style, justify in (("bold", "left"), ("red", "left"), ("bold red", "right"), ("", "left")):
        table.add_column(style=style, justify=justify, no_wrap=bool(style) or width >= WIDTH)  # type: ignore[arg-type]
    for index, kind in enumerate(summary.failures):
        message = Text(formatting.one_line(kind.message, 60))
        table.add_row("" if index else "failures", kind.code, f"{kind.count:,}", message)
    return table


def _definitions(summary: Summary) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    grid.add_row("definitions", "")
    for name, definition in summary.definitions.items():
        grid.add_row(name, Text(definition))
    return grid
