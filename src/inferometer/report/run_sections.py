"""The report of a run: its sections in the order in which a terminal shows them, and those that have no file of their own."""

from collections.abc import Sequence

from inferometer.analysis import settings
from inferometer.analysis.percentiles import Distribution, label_of
from inferometer.analysis.summary import Summary
from inferometer.records import CANCELLED, Run
from inferometer.report import breakdown, formatting, groups, sessions
from inferometer.report.cost import cost
from inferometer.report.document import Column, Document, Facts, Listing, Note, Section, Table, Words, figure
from inferometer.report.histogram import histograms
from inferometer.report.latency import latency
from inferometer.report.resources import resources
from inferometer.report.server import server
from inferometer.report.slo import objectives
from inferometer.report.stages import describe, stages
from inferometer.report.tail import tail_notes, why_slow
from inferometer.report.verdict import verdict
from inferometer.report.width import WIDTH

TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "tokens_per_chunk")
_OPTIONAL = ("p90", "min", "total/s")
"""Columns that a narrow table of tokens leaves out, the first of them first."""


def document(run: Run, summary: Summary, explain: bool = False, histogram: bool = False, why: bool = False) -> Document:
    """The report of a run from its summary; `explain` adds all definitions, `histogram` adds histograms, `why` adds why slow
    requests were slow."""
    return Document(
        title=_title(run, summary),
        sections=[
            verdict(run, summary),
            headline(run, summary),
            latencies(run, summary),
            *(Section("histogram", each.title, [each]) for each in (histograms(run) if histogram else ())),
            *([why_slow(summary)] if why else []),
            breakdown.section(run, summary),
            tokens(run, summary),
            sessions.section(summary),
            failures(summary),
            *([stages(run, summary)] if summary.stages else []),
            *([groups.classes(run, summary)] if summary.classes else []),
            *([groups.replicas(run, summary)] if summary.replicas else []),
            *([server(run, summary)] if summary.server else []),
            resources(run, summary),
            cost(summary),
            *(Section("notes", "Notes", [note]) for note in notes(run, summary, with_tails=not why)),
            *([definitions(summary)] if explain else []),
            objectives(summary),
        ],
        footer=str(run.folder),
    )


def latencies(run: Run, summary: Summary) -> Section:
    """The table of latencies, or why there is none; stages with different loads have only tables of their own."""
    if summary.overload is not None and summary.overload.status == "overloaded":
        words = (("latency", "strong"), ("   ", ""), (describe(summary.overload), "bad"))
        return Section("latency", "Latency", [Note(words, "")])
    if summary.metrics and (summary.metrics["lag"].count or summary.counts.ok):
        return latency(run, summary)
    return Section("latency", "Latency", [])


def notes(run: Run, summary: Summary, with_tails: bool = True) -> list[Note]:
    """What happened during the run, and what makes its tail slow."""
    found = [formatting.one_line(note, 1000) for note in run.manifest.outcome.notes]
    return [Note(text, "warn") for text in [*found, *(tail_notes(summary) if with_tails else [])]]


# --- title, throughput and counts ------------------------------------------------------------------------------------


def _title(run: Run, summary: Summary) -> list[Words]:
    manifest = run.manifest
    model = settings.text(manifest, "server", "model")
    parts = [formatting.describe_target(manifest), *([str(model)] if model else []), formatting.describe_api(manifest)]
    details = [formatting.describe_stages(manifest), formatting.describe_part(manifest), summary.started]
    lines = [" · ".join(filter(None, details)), formatting.describe_nodes(manifest)]
    return [
        ((formatting.one_line(" · ".join(parts), WIDTH - 2), "strong"),),
        *(((formatting.one_line(line, WIDTH - 2), "dim"),) for line in lines[: 2 if lines[1] else 1]),
    ]


def headline(run: Run, summary: Summary) -> Section:
    """Rates above counts, and what should be known about the data."""
    lines: list[tuple[str, list[Words]]] = [("", parts) for parts in _rates(run, summary) if parts]
    if remark := _rates_note(summary):
        lines.append(("", [((remark, "dim"),)]))
    lines[0] = ("throughput", lines[0][1])
    lines.append(("requests", _counts(summary)))
    for index, note in enumerate(formatting.data_notes(run.manifest)):
        lines.append(("" if index else "data", [((formatting.one_line(note, 300), "dim"),)]))
    return Section("throughput", "Throughput", [Facts(lines)])


def _rates(run: Run, summary: Summary) -> list[list[Words]]:
    """Requests per second, then what was in them per second, then their intervals. Only an open loop offers a rate of its own."""
    rate = summary.throughput
    requests = [figure(formatting.number(rate.requests), "requests/s completed")]
    if any(stage.open for stage in run.manifest.plan):
        requests.insert(0, figure(formatting.number(rate.offered), "requests/s offered"))
    requests.append(figure(formatting.number(rate.in_flight), "in flight on average"))
    if settings.receives_text(run.manifest):
        contents = {"output tokens/s": rate.output_tokens, "input tokens/s": rate.input_tokens}
    elif settings.sends_text(run.manifest):
        contents = {"input tokens/s": rate.input_tokens}
    else:
        contents = {} if rate.inferences is None else {"inferences/s": rate.inferences}
    return [requests, [figure(formatting.number(value), unit) for unit, value in contents.items()]]


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


def _counts(summary: Summary) -> list[Words]:
    counts, phases = summary.counts, summary.window.requests
    cancelled = counts.by_failure.get(CANCELLED, 0)
    failed = figure(f"{counts.failed:,}", "failed", "bad" if counts.failed else "")
    if cancelled:
        failed = (*failed, (f", of which {cancelled:,} cancelled", "dim"))
    remarks = {
        f"{counts.retried:,} sent twice": counts.retried,
        f"{phases.get('start', 0):,} while users started": phases.get("start", 0),
        f"{phases['warmup'] + phases['cooldown']:,} left out": phases["warmup"] + phases["cooldown"],
    }
    return [
        figure(f"{counts.ok:,}", "ok"),
        failed,
        figure(f"{counts.dropped:,}", "dropped", "bad" if counts.dropped else ""),
        *(((remark, "dim"),) for remark, number in remarks.items() if number),
    ]


# --- tokens, failures, definitions -----------------------------------------------------------------------------------


def tokens(run: Run, summary: Summary) -> Section:
    """How long prompts and responses were, and who counted them."""
    columns = ("mean", "min", *(settings.percentiles(run.manifest) or ("p50", "p90", "p99")), "max")
    rates = {"input_tokens": summary.throughput.input_tokens, "output_tokens": summary.throughput.output_tokens}
    rows = []
    for name in TOKENS if summary.metrics else ():
        if summary.metrics[name].count:
            cells = _lengths(summary.metrics[name], columns)
            rows.append((_label(name), *cells, formatting.number(rates[name]) if name in rates else ""))
    if not rows:
        return Section("tokens", "Tokens", [])
    is_embedding = not summary.metrics["output_tokens"].count and list(summary.tokens_counted_by) == ["nobody"]
    source = [] if is_embedding else [_token_source(summary)]
    return Section(
        "tokens", "Tokens", [Table("tokens", [*map(label_of, columns), "total/s"], rows, _OPTIONAL, notes=source)]
    )


def tokens_by_stage(run: Run, summary: Summary) -> Section:
    """The same of stages with different loads: a row for each, or one if they are alike."""
    columns = ("mean", "min", *(settings.percentiles(run.manifest) or ("p50", "p90", "p99")), "max")
    rows: list[tuple[str, ...]] = []
    for name in TOKENS:
        known = {
            stage.name: _lengths(stage.metrics[name], columns)
            for stage in summary.stages
            if stage.metrics and stage.metrics[name].count
        }
        is_alike = len(known) == len(summary.stages) and len(set(known.values())) == 1
        named = (
            [(_label(name), next(iter(known.values())))]
            if is_alike
            else [(f"{_label(name)}, {stage}", cells) for stage, cells in known.items()]
        )
        rows += [(label, *cells) for label, cells in named]
    table = Table("tokens", list(map(label_of, columns)), rows, notes=[_token_source(summary)])
    return Section("tokens", "Tokens", [table] if rows else [])


def _label(name: str) -> str:
    return "per chunk" if name == "tokens_per_chunk" else name.removesuffix("_tokens")


def _lengths(found: Distribution, columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(formatting.count(found.value(column)) for column in columns)


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
    metrics = [summary.metrics, *(stage.metrics for stage in summary.stages)]
    has_input = any(each["input_tokens"].count for each in metrics if each)
    is_known = has_input and any(who != "nobody" for who in input)
    return f"{text}; {_counted('input tokens', input)}" if is_known and input != output else text


def _counted(what: str, by: dict[str, int]) -> str:
    if len(by) == 1:
        only = next(iter(by))
        return f"{what} were not counted" if only == "nobody" else f"{what} counted {_COUNTED[only]}"
    return f"{what} counted " + ", ".join(f"{_COUNTED[who]}: {count:,}" for who, count in by.items())


def failures(summary: Summary) -> Section:
    """How requests failed, with the most common message of each kind."""
    columns = (
        Column("kind", "bad", wraps=False),
        Column("requests", "strong bad", right=True, wraps=False),
        Column("most common message", room=60, is_code=True),
    )
    rows = [(kind.code, f"{kind.count:,}", formatting.one_line(kind.message, 300)) for kind in summary.failures]
    lead = "Requests in the measured window that did not succeed."
    return Section("failures", "Failures", [Listing(columns, rows, "failures")] if rows else [], lead)


def definitions(summary: Summary) -> Section:
    """What every name in the report means."""
    rows = [("definitions", ""), *summary.definitions.items()]
    return Section("definitions", "Definitions", [Listing((Column("", "strong", wraps=False), Column()), rows)])
