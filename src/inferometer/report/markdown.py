"""A document as Markdown, for a pull request or a CI job."""

import re
from collections.abc import Iterable, Sequence

from inferometer.analysis.checks import in_words
from inferometer.analysis.comparison import Comparison
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import formatting, run_sections
from inferometer.report.compare import sections
from inferometer.report.document import (
    GAP,
    MARK,
    Block,
    Column,
    Document,
    Facts,
    Items,
    Judged,
    Listing,
    Note,
    Table,
    Verdict,
    Words,
    plain,
)
from inferometer.report.latency import details

_MENTION = re.compile(r"(?<!\w)([@#])(?=\w)")
"""Of a person or an issue, which GitHub would notify. A space without width ends it."""
_SIGNS = {"✓": "✅", "✗": "❌", "?": "❔", "+": "🟢", "-": "🔴", "=": "⚪"}
"""What a sign at the beginning of a cell becomes."""


def run_summary(run: Run, summary: Summary) -> str:
    """The whole report of a run, below its verdict."""
    document = run_sections.document(run, summary)
    words, *lines = document.title
    title = ((f"{in_words(summary.checks)}: {plain(words)}", ""),)
    sections = [*document.sections, details(run, summary)]
    return text(Document([title, *lines], sections))


def comparison_summary(found: Sequence[Comparison]) -> str:
    """The sides, the figures of each metric with a sentence, conditions and notes."""
    return "\n".join(text(Document(["A against B"], sections(each, is_complete=True))) for each in found)


def text(document: Document) -> str:
    """A document: its first line is the heading; sections with several blocks have no heading of their own, as in a terminal."""
    lines: list[str] = []
    for number, words in enumerate(document.title):
        lines += [f"{'' if number else '## '}{escape(plain(words))}", ""]
    for section in document.sections:
        lines += _blocks(section.blocks)
    lines += [escape(document.footer)] if document.footer else []
    return "\n".join(lines).rstrip("\n") + "\n"


def _blocks(blocks: Iterable[Block]) -> list[str]:
    """A table for a table, and a list for what is between two of them."""
    lines: list[str] = []
    bullets: list[str] = []
    for block in (*blocks, GAP):
        found: list[str] = []
        match block:
            case Table():
                marked = [[_marked(cell) for cell in row] for row in block.rows]
                found = table([block.title, *block.columns], marked)
                notes = [f"- {escape(_marked(note))}" for note in block.footnotes(block.columns)]
                found += [*notes, ""] if notes and found else []
            case Listing():
                names = [column.name for column in block.columns]
                cells = [
                    [_cell(one, column) for one, column in zip(row, block.columns, strict=True)] for row in block.rows
                ]
                found = table(names, cells)
            case Judged():
                rows = [
                    (_code(one.name), f"{_SIGNS[one.sign]} {one.status}", one.value, one.reason) for one in block.rows
                ]
                found = table(("objective", "status", "measured", "why"), rows)
            case Note():
                bullets += [f"- {escape(f'{block.sign} {plain(block.text)}'.strip())}"] if plain(block.text) else []
            case Items():
                bullets += [
                    f"- {one.sign} {f'**{one.name}**: ' if one.name else ''}{escape(one.text)}" for one in block.items
                ]
            case Facts():
                bullets += [
                    f"- {f'**{label}**: ' if label else ''}{escape(' · '.join(map(plain, parts)))}"
                    for label, parts in block.facts
                ]
            case Verdict():
                bullets.append(f"- {escape(block.text)}")
        if (found or block is GAP) and bullets:
            lines += [*bullets, ""]
            bullets = []
        lines += found
    return lines


def _marked(text: str) -> str:
    """A text whose mark does not begin italics."""
    return text.replace(MARK, f"\\{MARK}") if MARK in (text[:1], text[-1:]) else text


def _cell(words: Words, column: Column) -> str:
    sign, _, rest = plain(words).partition(" ")
    if not isinstance(words, str) and sign in _SIGNS:
        return f"{_SIGNS[sign]} {rest}"
    return _code(plain(words)) if column.is_code else plain(words)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, and the empty line after it; nothing if it has no rows."""
    rows = list(rows)
    if not rows:
        return []
    lines = [header, ["---"] * len(header), *rows]
    return [*(f"| {' | '.join(escape(cell) for cell in line)} |" for line in lines), ""]


def escape(text: str) -> str:
    """A text on one line that cannot end a table cell, and that has no HTML, link, image, mention or reference except within code (`...`)."""
    line = formatting.one_line(text, 1000)
    parts = line.replace("|", "\\|").split("`")
    is_plain = "``" in line or "\\`" in line  # other rules decide what is code
    last = len(parts) - 1
    return "`".join(
        part if index % 2 and index < last and not is_plain else _inert(part) for index, part in enumerate(parts)
    )


def _inert(text: str) -> str:
    text = _MENTION.sub(r"\1&#8203;", text).replace("<", "&lt;").replace("](", "]&#40;")
    return text.replace("://", ":&#47;/").replace("www.", "www&#46;")  # GitHub makes links of these, too


def _code(text: str) -> str:
    return "`" + text.replace("`", "'") + "`" if text else ""
