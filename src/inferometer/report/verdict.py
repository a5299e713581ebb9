"""The verdict, the checks that did not pass, and which of the figures may be quoted."""

from collections.abc import Iterable

from inferometer.analysis.checks import Check, in_words
from inferometer.analysis.resources import unreadable
from inferometer.analysis.server_view import unread
from inferometer.analysis.summary import FIGURES, Summary
from inferometer.records import Run
from inferometer.report import formatting
from inferometer.report.document import Block, Item, Items, Note, Section, Verdict

TONES = {"VALID": "good", "VALID with warnings": "warn", "INVALID": "bad"}
SIGNS = {"fail": ("✗", "bad"), "warn": ("!", "warn"), "pass": ("✓", "good")}

_MOST_STAGES = 6
"""With more stages, those whose figures may be quoted alike are listed together."""


def verdict(run: Run, summary: Summary) -> Section:
    """The verdict in words, with the checks that failed or warned, and the observers that could not be read."""
    statuses = [check.status for check in summary.checks]
    words = in_words(summary.checks)
    names = {"fail": "failed", "warn": "warned", "pass": "passed"}
    counts = ", ".join(f"{statuses.count(status)} {name}" for status, name in names.items() if status in statuses)
    blocks: list[Block] = [Verdict(words, TONES[words], f"checks: {counts}")]
    for status in ("fail", "warn"):
        if found := [check for check in summary.checks if check.status == status]:
            blocks.append(check_list(found))
    if "fail" in statuses:
        blocks.append(Note(f"may be quoted: {may_be_quoted(summary)}", "strong", indent=1))
    return Section("verdict", "Verdict", [*blocks, *unread_observers(run, summary)])


def check_list(checks: Iterable[Check]) -> Items:
    """What each check says."""
    return Items([Item(*SIGNS[each.status], formatting.one_line(each.message, 1000), each.name) for each in checks])


def unread_observers(run: Run, summary: Summary) -> list[Block]:
    """Why an observer recorded nothing, unless the section about what it observes says so."""
    elsewhere = unread(run.manifest)  # report/server.py
    if summary.resources is not None:
        elsewhere |= unreadable(run.manifest)  # report/resources.py
    return [
        Note(formatting.one_line(f"observer {name}: {why}", 1000), "warn")
        for name, why in run.manifest.observer_errors.items()
        if name not in elsewhere
    ]


def may_be_quoted(summary: Summary) -> str:
    """Say which figures no failed check concerns: of the run or, if they differ, of each stage."""
    if not summary.stages or len({tuple(stage.quotable.items()) for stage in summary.stages}) == 1:
        return _kinds(summary.quotable)
    if len(summary.stages) <= _MOST_STAGES:
        return "; ".join(f"{stage.name}: {_kinds(stage.quotable)}" for stage in summary.stages)
    by_kinds: dict[str, list[int]] = {}
    for index, stage in enumerate(summary.stages):
        by_kinds.setdefault(_kinds(stage.quotable), []).append(index)
    names = [stage.name for stage in summary.stages]
    return "; ".join(f"{formatting.name_ranges(names, own)}: {kinds}" for kinds, own in by_kinds.items())


def _kinds(quotable: dict[str, bool]) -> str:
    kinds = [kind for kind in FIGURES if quotable[kind]]
    missing = [kind for kind in FIGURES if not quotable[kind]]
    return f"{' and '.join(kinds)}, not {missing[0]}" if kinds and missing else " and ".join(kinds) or "nothing"
