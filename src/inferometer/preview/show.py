"""The figures of a workload as text."""

import io

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.preview.overview import Arrivals, Lengths, Overview, Prefixes, Sample
from inferometer.preview.prefixes import BLOCK
from inferometer.report import blocks, formatting
from inferometer.report.console import table
from inferometer.report.safe_console import SafeConsole
from inferometer.units import format_seconds

_BESIDE_BARS = 34


def render(overview: Overview, width: int, color: bool) -> str:
    """Return the text for a terminal of this width."""
    parts: list[RenderableType] = [_head(overview), "", _table(overview)]
    for name, lengths in _token_rows(overview).items():
        if lengths is not None and lengths.min < lengths.max:
            per = "requests" if overview.turns is None else "turns"
            parts += ["", _histogram(f"{name}: {per} per bin", lengths, width)]
    if overview.arrivals is not None:
        parts += ["", _curve(overview.arrivals)]
    for sample in overview.samples:
        parts += ["", _sample(sample)]
    file = io.StringIO()
    SafeConsole(file=file, width=width, force_terminal=color, no_color=not color, highlight=False).print(Group(*parts))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _head(overview: Overview) -> RenderableType:
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("data", f"{overview.type}, seed {overview.seed}, digest {overview.digest[:16]}")
    counts = [f"{overview.planned:,} in the load"] if overview.planned else []
    if overview.distinct is not None:
        counts.append(f"{overview.distinct:,} different")
    elif not overview.duplicates:
        counts.append("every one different")
    looked_at = f"the figures are of the first {overview.requests:,}"
    grid.add_row(_unit(overview), "; ".join(filter(None, (", ".join(counts), looked_at))))
    if overview.classes:
        total = sum(overview.classes.values())
        parts = (f"{name} {count:,} ({count / total:.1%})" for name, count in overview.classes.items())
        grid.add_row("classes", ", ".join(parts))
    if overview.input is not None:
        grid.add_row("tokens", f"counted by {overview.tokenizer}")
    first = "first prompts" if overview.turns is not None else "prompts"
    grid.add_row("duplicates", _share(overview.duplicates, overview.requests, f"{first} repeat an earlier one"))
    if overview.prefixes is not None:
        grid.add_row("shared prefix", f"{_prefixes(overview.prefixes)} {_unit(overview)}")
    for index, note in enumerate(overview.notes):
        grid.add_row("" if index else "note", note)
    return grid


def _share(count: int, total: int, what: str) -> str:
    return f"{count:,} of {total:,} {what}" + (f" ({count / total:.1%})" if count else "")


def _prefixes(found: Prefixes) -> str:
    what = f"prompt tokens are in blocks of {BLOCK} that an earlier prompt starts with, too"
    return f"{_share(found.shared, found.tokens, what)}, in the first {found.requests:,}"


def _unit(overview: Overview) -> str:
    """What the data consists of."""
    return "requests" if overview.turns is None else "sessions"


def _token_rows(overview: Overview) -> dict[str, Lengths | None]:
    """The distributions of tokens. Of a session's later turns, only what they add is known before the run."""
    added = "input tokens" if overview.turns is None else "added tokens"
    return {added: overview.input, "output tokens": overview.output}


def _table(overview: Overview) -> RenderableType:
    columns = ["total", "mean", "min", "p50", "p90", "p99", "max"]
    made = table("per request" if overview.turns is None else "per turn", columns)
    for name, lengths in (_token_rows(overview) | {"turns per session": overview.turns}).items():
        if lengths is not None:
            cells = (getattr(lengths, column) for column in columns)
            made.add_row(name, *(formatting.count(round(cell, 1)) for cell in cells))
    return made if made.rows else Text("no tokens are counted", style="dim")


def _histogram(title: str, lengths: Lengths, width: int) -> RenderableType:
    largest = max(count for _, _, count in lengths.histogram)
    grid = Table.grid(padding=(0, 1))
    for justify in ("right", "left", "right", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    for low, high, count in lengths.histogram:
        bar = blocks.bar(count / largest, width - _BESIDE_BARS)
        grid.add_row(f"{low:,}", "..", f"{high:,}", f"{count:,}" if count else "", Text(bar, style="cyan"))
    return Group(Text(title, style="dim"), grid)


def _curve(arrivals: Arrivals) -> RenderableType:
    top = max(arrivals.counts, default=0)
    rates = f"{sum(arrivals.counts):,} in {format_seconds(arrivals.interval * len(arrivals.counts))}"
    peak = f"at most {formatting.rate(top / arrivals.interval, 4)}/s" if arrivals.interval else ""
    title = f"arrivals: {rates}, {peak} over {format_seconds(arrivals.interval)}"
    return Group(Text(title, style="dim"), Text(blocks.sparkline(arrivals.counts), style="cyan"))


def _sample(sample: Sample) -> RenderableType:
    facts = [f"request {sample.id}"]
    facts += [f"class {sample.class_}"] if sample.class_ is not None else []
    facts += [f"{sample.n_in:,} tokens in"] if sample.n_in else []
    facts += [f"{sample.n_out:,} out"] if sample.n_out else []
    facts += [f"{sample.turns} turns"] if sample.turns > 1 else []
    text = f"{sample.head} ... {sample.tail}" if sample.tail else sample.head
    shown = Text(formatting.one_line(text, len(text)))
    return Group(Text(", ".join(facts), style="bold"), Padding(shown, (0, 0, 0, 2)))
