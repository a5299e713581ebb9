"""A document in the terminal: the same bytes for the same document and width, no matter where it is printed."""

import io
from collections.abc import Iterable, Sequence

from rich import table as rich_table
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import blocks, formatting, run_sections
from inferometer.report.document import (
    GAP,
    MARK,
    Bars,
    Block,
    Document,
    Facts,
    Items,
    Judged,
    Listing,
    Note,
    Table,
    Tone,
    Verdict,
    Words,
    plain,
)
from inferometer.report.safe_console import SafeConsole
from inferometer.report.width import WIDTH, bare, fitted

_STYLES = {"good": "green", "warn": "yellow", "bad": "red", "strong": "bold"}
_NAME = 13
"""Columns of the names in a list."""
_ROOM = len(" ? undecided  ") + 8
"""Width of the status before a judgement, and of the space between all columns."""
_BESIDE_BARS = 42
"""Columns of a line that are not its bar."""


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
    return text(run_sections.document(run, summary, explain, histogram, why), color, width)


def text(document: Document, color: bool = False, width: int = WIDTH, is_tight: bool = False) -> str:
    """Render a document: its title, its sections with an empty line after each, and its footer; `is_tight`: without margins."""
    margins = (0, 0, 0, 0) if is_tight else (0, 0, 1, 1)
    console = new_console(color, width)
    with console.capture() as capture:
        if document.title:
            console.print(Padding(Group(*map(words, document.title)), margins))
        for section in document.sections:
            if parts := renderables(section.blocks, width):
                console.print(Padding(Group(*parts), margins))
        if document.footer:
            console.print(Text(f" {document.footer}", style="dim"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def renderables(each: Iterable[Block], width: int) -> list[RenderableType]:
    """Each block as something that rich prints, for `width` columns; without charts."""
    parts: list[RenderableType] = []
    for block in each:
        match block:
            case Table():
                parts += _table(block, width)
            case Note():
                parts.append("" if block is GAP else note(block))
            case Facts():
                parts.append(_facts(block, width))
            case Items():
                parts.append(_items(block, width))
            case Judged():
                parts.append(_judged(block, width))
            case Bars():
                parts += _bars(block, width)
            case Listing():
                parts.append(_listing(block, width))
            case Verdict():
                badge = (f" {block.words} ", f"bold white on {_STYLES[block.tone]}")
                parts.append(Text.assemble(badge, f"  {block.text}"))
    return parts


# --- texts -----------------------------------------------------------------------------------------------------------


def style(tone: Tone) -> str:
    return " ".join(_STYLES.get(word, word) for word in tone.split())


def words(text: Words, tone: Tone = "") -> Text:
    if isinstance(text, str):
        return Text(text, style=style(tone))
    return Text.assemble(*((piece, style(own)) for piece, own in text), style=style(tone))


def note(note: Note) -> RenderableType:
    """A line; further lines of one with a sign are aligned with its text."""
    if not note.sign:
        line = words(note.text, note.tone)
        return Padding(line, (0, 0, 0, note.indent)) if note.indent else line
    made = rich_table.Table.grid(padding=(0, 1))
    made.add_column(style=style(note.tone), width=1)
    made.add_column(style=style(note.tone))
    made.add_row(note.sign, words(note.text))
    return made


def _items(block: Items, width: int) -> RenderableType:
    made = rich_table.Table.grid(padding=(0, 1))
    named = any(item.name for item in block.items)
    for column in (1, _NAME, width - _NAME - 6) if named else (1, width - 5):
        made.add_column(width=column)
    for item in block.items:
        name = [words(item.name, item.tone)] if named else []
        made.add_row(words(item.sign, f"strong {item.tone}"), *name, Text(item.text))
    return Padding(made, (0, 0, 0, 1))


def _facts(block: Facts, width: int) -> RenderableType:
    """Labels and figures, as many of them in a line as there is room for."""
    made = rich_table.Table.grid(padding=(0, 3))
    made.add_column(style="bold", min_width=block.indent, no_wrap=True)
    made.add_column()
    room = width - 4 - max(block.indent, *(len(label) for label, _ in block.facts))
    for label, parts in block.facts:
        made.add_row(label, flow([words(part) for part in parts], room))
    return made


def flow(parts: Sequence[Text], room: int) -> Text:
    """Put the parts one after the other, with line breaks only between them."""
    gap, lines = Text("   "), [Text()]
    for part in parts:
        if lines[-1] and lines[-1].cell_len + gap.cell_len + part.cell_len > room:
            lines.append(Text())
        lines[-1] = Text.assemble(lines[-1], gap, part) if lines[-1] else part
    return Text("\n").join(lines)


# --- tables ----------------------------------------------------------------------------------------------------------


def table(title: str, columns: Iterable[str]) -> rich_table.Table:
    """A table of numbers without lines, with names in its first column."""
    made = bare()
    made.add_column(title, min_width=15, no_wrap=True)
    for column in columns:
        made.add_column(f"{column} ", justify="right", no_wrap=True, min_width=8)
    return made


def _table(block: Table, width: int) -> list[RenderableType]:
    made = table(block.title, block.columns)
    for number, (label, *cells) in enumerate(block.rows):
        last = Text(cells.pop()) if block.flush else None
        found = [*map(_cell, cells), *([last] if last is not None else [])]
        made.add_row(Text(label, style="bold" if number in block.strong else ""), *found)
    made = fitted(made, width, block.optional)
    shown = [str(column.header).strip() for column in made.columns]
    return [made, *(Text(note, style="dim") for note in block.footnotes(shown))]


def _cell(text: str) -> Text:
    """A cell, with a place for the mark."""
    is_marked = text.endswith(MARK)
    return Text.assemble(text.removesuffix(MARK), (MARK if is_marked else " ", "yellow"), style="dim" * is_marked)


def _listing(block: Listing, width: int) -> RenderableType:
    made = rich_table.Table.grid(padding=(0, 2))
    if block.title:
        made.add_column(style="bold", no_wrap=True)
    for column in block.columns:
        made.add_column(
            style=style(column.tone),
            justify="right" if column.right else "left",
            no_wrap=not column.wraps or (column.room > 0 and width >= WIDTH),
        )
    for number, row in enumerate(block.rows):
        label = [Text("" if number else block.title)] if block.title else []
        cells = (words(_cut(text, column.room)) for text, column in zip(row, block.columns, strict=True))
        made.add_row(*label, *cells)
    return made


def _cut(text: Words, room: int) -> Words:
    return formatting.one_line(plain(text), room) if room else text


def _bars(block: Bars, width: int) -> list[RenderableType]:
    made = rich_table.Table.grid(padding=(0, 1))
    for justify in ("right", "left", "right", "right", "left"):
        made.add_column(justify=justify, no_wrap=True)
    for labels, share in block.bars:
        made.add_row(*labels, Text(blocks.bar(share, width - _BESIDE_BARS), style="cyan"))
    return [Text(block.title, style="dim"), made]


def _judged(block: Judged, width: int) -> RenderableType:
    longest = [
        max(map(len, column)) for column in zip(*((one.name, one.value, one.reason) for one in block.rows), strict=True)
    ]
    is_wide = sum(longest) + _ROOM <= width
    made = rich_table.Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column()
    for one in block.rows:
        figures = Text(one.name.ljust(longest[0] + 2)).append(one.value.rjust(longest[1]), "bold")
        figures.append(f"  {one.reason}" if is_wide else f"\n{one.reason}", "" if is_wide else "dim")
        made.add_row(words(f"{one.sign} {one.status}", f"strong {one.tone}"), figures)
    return Padding(made, (0, 0, 0, 1))
