"""What one medium shows, all show: the sections of a run in the terminal, in Markdown and on the page."""

from collections.abc import Callable, Iterator

import html_runs
import pytest
import test_report

from inferometer.analysis.summary import summarise
from inferometer.records import Run
from inferometer.report import console, markdown, run_sections
from inferometer.report.document import Block, Facts, Items, Judged, Listing, Note, Table, plain

RUNS: dict[str, Callable[[], Run]] = {
    **test_report.RUNS,
    "sessions": test_report.with_sessions,
    "with a server": html_runs.plain,
    "classes": html_runs.staged,
}


def said(block: Block) -> Iterator[str]:
    """The texts of a block."""
    match block:
        case Note():
            yield plain(block.text)
        case Items():
            yield from (item.text for item in block.items)
        case Table():
            yield from (row[0] for row in block.rows)
            yield from block.footnotes(block.columns)
        case Listing():
            yield from (plain(cell) for row in block.rows for cell in row)
        case Judged():
            yield from (text for one in block.rows for text in (one.name, one.value, one.reason))
        case Facts():
            yield from (plain(part) for _, parts in block.facts for part in parts)


def flat(text: str) -> str:
    return " ".join(text.replace("`", "").split()).lower()


@pytest.mark.parametrize("name", RUNS)
def test_every_medium_says_all_that_the_document_says(name: str) -> None:
    run = RUNS[name]()
    summary = summarise(run)
    document = run_sections.document(run, summary)
    shown = flat(html_runs.Page(html_runs.encoded(run, summary)).text)
    exported = flat(markdown.run_summary(run, summary))
    printed = flat(console.render(run, summary, width=1000))
    assert len(document.sections) > 3
    for section in document.sections:
        for text in (text for block in section.blocks for text in said(block)):
            words = flat(text).rstrip(".")
            assert words in shown, (section.id, text)
            assert flat(markdown.escape(text)) in exported.replace("\\*", "*") or words in exported, (section.id, text)
            if section.id != "failures":  # a terminal has room for the beginning of a message
                assert words in printed, (section.id, text)
