"""Markdown summaries, for a pull request or a CI job: of a run, and of a comparison."""

import re
from collections.abc import Iterable, Sequence

import msgspec

from inferometer.analysis.checks import in_words
from inferometer.analysis.comparison import Comparison
from inferometer.analysis.comparison_text import title
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import formatting, run_sections
from inferometer.report.compare import amount, describe_side, stages_of
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

_MENTION = re.compile(r"(?<!\w)([@#])(?=\w)")
"""Of a person or an issue, which GitHub would notify. A space without width ends it."""
_STATUS = {"✓": "✅", "✗": "❌", "?": "❔"}
_CONDITIONS = {"passes": "✅ passes", "fails": "❌ fails", "undecided": "❔ undecided"}
_VERDICTS = {"better": "🟢 better", "worse": "🔴 worse", "no clear difference": "⚪ no clear difference"}


def run_summary(run: Run, summary: Summary) -> str:
    """The whole report of a run, below its verdict."""
    document = run_sections.document(run, summary)
    words, *lines = document.title
    title = ((f"{in_words(summary.checks)}: {plain(words)}", ""),)
    return text(msgspec.structs.replace(document, title=[title, *lines], footer=""))


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
                    (_code(one.name), f"{_STATUS[one.sign]} {one.status}", one.value, one.reason) for one in block.rows
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
    return _code(plain(words)) if column.is_code else plain(words)


def comparison_summary(found: Sequence[Comparison]) -> str:
    """Conditions first, then a sentence and the figures of each metric."""
    lines: list[str] = []
    for each in found:
        lines += [
            "## A against B",
            "",
            f"- A: {escape(describe_side(each.a))}",
            f"- B: {escape(describe_side(each.b))}",
            "",
        ]
        if each.conditions:
            rows = [
                (
                    f"`{one.condition}`",
                    _CONDITIONS[one.status],
                    f"{one.stage}: {one.reason}" if one.stage else one.reason,
                )
                for one in each.conditions
            ]
            lines += table(("fail if", "status", "why"), rows)
        for name, metrics in stages_of(each):
            lines += [f"### {escape(name)}", ""] if name else []
            figures = [
                (title(key), _VERDICTS[one.verdict], amount(one.a, one.unit), amount(one.b, one.unit), one.sentence)
                for key, one in metrics.items()
            ]
            lines += table(("metric", "verdict", "A", "B", "in words"), figures) if figures else []
        lines += [*(f"- {escape(note)}" for note in each.notes), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


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
