"""A comparison of engines in the terminal: the recommendation, one row per engine and level, and what to know about the comparison."""

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.analysis.engine_results import EngineResults
from inferometer.analysis.recommendation import Recommendation
from inferometer.report import formatting
from inferometer.report.console import new_console, note
from inferometer.report.document import MARK, Note
from inferometer.report.engine_rows import (
    PERFORMANCE,
    RESOURCES,
    SIGNS,
    Column,
    certainty,
    encoder_rows,
    failure_lines,
    left_out,
    level_rows,
    level_text,
    output_lines,
    parity_lines,
    problem_lines,
    startup_rows,
    subject,
)
from inferometer.report.width import WIDTH, bare, fitted

WIDEST = 160
"""The width of the tables in a wide terminal. Text stays narrower."""

_MOST_NOTES = 8
_ENCODER_OPTIONAL = ("J/seq", "memory", "diff", "seq/s", "min", "max", "sd", "median")


def render(found: EngineResults, color: bool, width: int) -> str:
    """Render the answer for `width` columns."""
    console = new_console(color, width)
    parts: list[RenderableType] = [_title(found), *(_recommended(each, found) for each in found.recommendation)]
    excluded = [
        f"{engine.name} ({'it failed: see below' if engine.message else engine.excluded})"
        for engine in found.engines
        if engine.excluded
    ]
    if excluded:
        parts.append(
            note(Note(f"cannot be recommended: {formatting.one_line('; '.join(excluded), 1000)}", "warn", "!"))
        )
    tables_of_levels = [_levels(found, PERFORMANCE, width), _levels(found, RESOURCES, width), _encoders(found, width)]
    shown = [table for table in tables_of_levels if table is not None]
    blocks = [
        *shown,
        _list("failed", failure_lines(found)),
        _list("not valid", problem_lines(found)),
        _list("outputs", output_lines(found)),
        _startup(found, width),
        _list("differences between the engines", parity_lines(found)),
        _list("", [*found.notes, *_legend(found, shown)]),
    ]
    with console.capture() as capture:
        for part in parts:
            console.print(Padding(part, (0, 0, 0, 1)), width=min(width, WIDTH))
        for block in blocks:
            if block is not None:
                console.print()
                console.print(Padding(block, (0, 0, 0, 1)))
        if found.folder:
            console.print()
            console.print(Text(f" {found.folder}", style="dim"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _title(found: EngineResults) -> RenderableType:
    return Text.assemble((f"{subject(found)}\n\n", "dim"), (f"{formatting.one_line(found.answer, 1000)}\n", "bold"))


def _recommended(each: Recommendation, found: EngineResults) -> Table:
    """The sentence, with a sign for how sure it is."""
    made = Table.grid(padding=(0, 1))
    made.add_column(style={"none": "red", "clear": "green", "equal": "yellow"}[certainty(each)], width=1)
    made.add_column()
    made.add_row(SIGNS[certainty(each)], Text(formatting.one_line(each.text, 2000)))
    if each.engine and (without := left_out(each, found)):
        made.add_row("", Text(formatting.one_line(f"left out: {'; '.join(without)}", 600), style="dim"))
    return made


def _compact(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int, optional: Sequence[str]) -> Table:
    """A table whose columns are as wide as they have to be, without those that do not fit."""
    made = bare()
    made.add_column(f"{titles[0]} ", no_wrap=True)
    for title in titles[1:]:
        made.add_column(f"{title} ", justify="right", no_wrap=True)
    for cells in rows:
        made.add_row(*(f"{cell} " for cell in cells))
    return fitted(made, width, optional)


def _first_only(names: Sequence[str], width: int) -> list[str]:
    """Names of a table's rows: only at the first of several rows of an engine, and short enough to leave room for the numbers."""
    return [
        formatting.one_line(name, 2 * width // 7) if not number or names[number - 1] != name else ""
        for number, name in enumerate(names)
    ]


def _levels(found: EngineResults, columns: Sequence[Column], width: int) -> Table | None:
    kept, rows = level_rows(found, columns)
    if not rows:
        return None
    names = _first_only([engine.name for engine, _, _ in rows], width)
    cells = [[name, level_text(level), *own] for name, (_, level, own) in zip(names, rows, strict=True)]
    optional = [column.title for column in sorted(kept, key=lambda column: column.keep) if column.keep]
    return _compact(["engine", "level", *(column.title for column in kept)], cells, width, optional)


def _encoders(found: EngineResults, width: int) -> Table | None:
    headers, rows = encoder_rows(found)
    if not rows:
        return None
    names = _first_only([engine.name for engine, _, _ in rows], width)
    cells = [[name, f"{line.batch}", f"{line.length}", *own] for name, (_, line, own) in zip(names, rows, strict=True)]
    return _compact(["engine", "batch", "length", *headers], cells, width, _ENCODER_OPTIONAL)


def _startup(found: EngineResults, width: int) -> Table | None:
    headers, rows = startup_rows(found)
    if not rows:
        return None
    names = _first_only([name for name, *_ in rows], width)
    cells = [[name, *own] for name, (_, *own) in zip(names, rows, strict=True)]
    return _compact(["start-up", *headers[1:]], cells, width, headers[2:-2])


def _legend(found: EngineResults, shown: Sequence[Table]) -> Iterable[str]:
    """What the tables' columns mean: only of those that are shown."""
    meanings = {
        "p50": "latencies in ms",
        "cost/M": f"cost in {found.currency} per million output tokens",
        "scaling": "scaling: throughput per request in flight, relative to the lowest level",
        "median": "latencies in ms",
        "diff": "diff: difference of outputs from the reference's, relative to its largest magnitude",
    }
    titles = [str(column.header) for table in shown for column in table.columns]
    words = [words for name, words in meanings.items() if any(name in title for title in titles)]
    if words:
        yield "; ".join(dict.fromkeys(words))
    if any(MARK in str(cell) for table in shown for column in table.columns for cell in column.cells):
        yield f"{MARK} too few values for this percentile"
    if found.recommendation:
        rules = "; ".join(f"{each.use}: {each.rule}" for each in found.recommendation)
        yield f"rules: {rules}"


def _list(title: str, lines: Sequence[str]) -> Table | None:
    if not lines:
        return None
    made = bare()
    made.show_header = bool(title)
    made.add_column(title, overflow="fold", max_width=WIDTH - 1)
    for line in lines[:_MOST_NOTES]:
        made.add_row(Text(formatting.one_line(line, 600), style="" if title else "dim"))
    if len(lines) > _MOST_NOTES:
        made.add_row(Text(f"and {len(lines) - _MOST_NOTES} more, see --html", style="dim"))
    return made
