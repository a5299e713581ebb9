"""A report before it is rendered: sections of tables, notes, facts and verdicts, and charts for those media that can show them.

Each fact is put into words once, in the file of its section. The terminal (console.py), Markdown (markdown.py) and the HTML page
(html/page.py) render the same blocks; none of them knows what a run is.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

MARK = "*"
"""At the end of a cell, marks a percentile of too few values."""
Tone = str
"""What a text means, for its colour: words out of `good`, `warn`, `bad`, `dim` and `strong`; empty for plain text."""
Words = str | tuple[tuple[str, Tone], ...]
"""A text, or pieces of it with their tones."""


class Verdict(msgspec.Struct, frozen=True):
    """The conclusion in a word or two, and what it is made of."""

    words: str
    tone: Tone
    text: str


class Note(msgspec.Struct, frozen=True):
    """A line of text."""

    text: Words
    tone: Tone = "dim"
    sign: str = ""
    """`!` for what a user should not miss."""
    indent: int = 0


class Item(msgspec.Struct, frozen=True):
    sign: str
    tone: Tone
    text: str
    name: str = ""


class Items(msgspec.Struct, frozen=True):
    """A list in which every line has a sign, and perhaps a name."""

    items: Sequence[Item]


class Facts(msgspec.Struct, frozen=True):
    """Lines of short figures, each line with a label; one without a label continues the line above."""

    facts: Sequence[tuple[str, Sequence[Words]]]
    indent: int = 0
    """The least width of the labels."""


class Table(msgspec.Struct, frozen=True):
    """Numbers in rows. The title is the header of the first column, which has the names of the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    optional: Sequence[str] = ()
    """Columns that a narrow medium leaves out, the first of them first."""
    strong: Sequence[int] = ()
    """Rows whose name stands out."""
    texts: Sequence[str] = ()
    """Columns with prose."""
    flush: bool = False
    """Whether the last column needs no room for a mark."""
    notes: Sequence[str] = ()
    """What has to be known to read it."""
    needs: Mapping[str, int] = {}
    """For columns with marks, how many independent values they need."""

    def footnotes(self, shown: Collection[str]) -> list[str]:
        """The notes, and what the mark says about those columns that are shown."""
        needed = ", ".join(f"{needs:,} for {name}" for name, needs in self.needs.items() if name in shown)
        return [*self.notes, *([f"{MARK} too few independent values: it needs {needed}"] if needed else [])]

    @property
    def is_marked(self) -> bool:
        return any(cell.endswith(MARK) for row in self.rows for cell in row[1:])


class Column(msgspec.Struct, frozen=True):
    """A column of a listing; a terminal shows no headers there."""

    name: str = ""
    tone: Tone = ""
    right: bool = False
    wraps: bool = True
    """Whether its texts may be broken into lines."""
    room: int = 0
    """Characters of a text that a terminal has room for; 0: all."""
    is_code: bool = False
    """Whether others wrote the texts, so that they are shown as they are."""


class Listing(msgspec.Struct, frozen=True):
    """Texts in columns: for each thing, what is said about it."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Words]]
    title: str = ""
    """In a terminal, what stands before the first row."""


class Judgement(msgspec.Struct, frozen=True):
    """What was demanded, what was measured, and why it was judged so."""

    sign: str
    tone: Tone
    status: str
    name: str
    value: str
    reason: str


class Judged(msgspec.Struct, frozen=True):
    """Judgements below each other, with the reason at the end of a line or, if there is no room, below it."""

    rows: Sequence[Judgement]


class Bars(msgspec.Struct, frozen=True):
    """A small chart for a terminal: labels and a bar for each. A page has a chart of its own instead."""

    title: str
    bars: Sequence[tuple[Sequence[str], float]]
    """The labels, and how long the bar is as a share of the longest."""


Block = Bars | Verdict | Note | Items | Judged | Facts | Table | Listing | dict[str, Any]
"""A dict is a block that only a page can show, such as a chart (html/page.py)."""
GAP = Note("")
"""An empty line of a terminal, between tables of one section."""


class Section(msgspec.Struct, frozen=True):
    id: str
    """The anchor, unique in the document."""
    title: str
    blocks: Sequence[Block]
    lead: str = ""
    """A sentence that says what the section shows; a terminal has no room for it."""


class Document(msgspec.Struct, frozen=True):
    title: Sequence[Words]
    """Lines about what was measured."""
    sections: Sequence[Section]
    footer: str = ""


def plain(words: Words) -> str:
    """A text without tones."""
    return words if isinstance(words, str) else "".join(text for text, _ in words)


def figure(value: str, unit: str, tone: Tone = "") -> Words:
    """A number that stands out, and what it counts."""
    return ((value, f"strong {tone}".strip()), (" ", ""), (unit, tone or "dim"))
