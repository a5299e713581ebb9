"""The capacity of a server as JSON, Markdown and JUnit XML; capacity.json, and the row of its reports."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inferometer.capacity_search.result import Capacity, Probe, as_json, from_json
from inferometer.errors import UserError
from inferometer.records import Manifest
from inferometer.report import capacity_report, junit, markdown
from inferometer.report.capacity import (
    PURPOSES,
    UNITS,
    amount,
    basis,
    chatting,
    judged,
    notes,
    reason,
    required,
    verdict,
    words,
)
from inferometer.report.formatting import number
from inferometer.report.output import Report, at_once
from inferometer.store.folder import CAPACITY, atomic_file
from inferometer.units import format_seconds

if TYPE_CHECKING:
    from inferometer.report.html.page import Page

_MARKS = {"good": "✅", "bad": "❌", "warn": "❔"}
_OUTCOMES = {"met": "passed", "missed": "failed", "undecided": "skipped"}
_REQUIRED = {"met": "✅", "missed": "❌", "undecided": "❔"}


class CapacityReport(NamedTuple):
    """What a search found, and the manifest of its last probe."""

    found: Capacity
    manifest: Manifest | None


def encode(report: CapacityReport) -> bytes:
    """The answer as JSON."""
    tree = as_json(report.found, words(report.found), report.manifest)
    return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"


def save(report: CapacityReport) -> None:
    """Write capacity.json, from which every report can be made again."""
    with atomic_file(Path(report.found.folder) / CAPACITY) as partial:
        partial.write_bytes(encode(report))


def read(folder: Path) -> CapacityReport:
    """Read capacity.json. Raises UserError when it cannot be read."""
    path = folder / CAPACITY
    try:
        return CapacityReport(*from_json(json.loads(path.read_bytes())))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", "give a folder that can be read") from None
    except (ValueError, KeyError, TypeError) as error:  # msgspec.ValidationError is a ValueError
        raise UserError(f"{path}: this is not the result of a search: {error}", "run `inferometer capacity`") from None


def summary(found: Capacity) -> str:
    """The answer as Markdown, for a pull request or a CI job: in words, then the probes that show it."""
    sentence = words(found)
    lines = [
        f"## Capacity: {markdown.escape(' · '.join(part for part in (found.url, found.model) if part))}",
        "",
        f"**{markdown.escape(sentence[:1].upper() + sentence[1:])}.**",
        "",
    ]
    if found.at_least is not None:
        lines += [f"{_REQUIRED[found.outcome]} {markdown.escape(required(found))}.", ""]
    lines += [markdown.escape("; ".join(filter(None, (basis(found), chatting(found))))), ""]
    remarks = notes(found)
    lines += [f"- {markdown.escape(note)}" for note in remarks] + ([""] if remarks else [])
    if found.curve:
        loops = [(f"{probe.level:,.0f}", number(probe.throughput), *_cells(probe)[:3]) for probe in found.curve]
        titles = ("requests in flight", "requests/s served", "verdict", "evidence", "time")
        lines += markdown.table(titles, loops)
    if found.levels:
        rows = [(amount(probe.level), *_cells(probe)) for probe in found.levels]
        lines += markdown.table((UNITS[found.by], "verdict", "evidence", "time", "purpose"), rows)
    return "\n".join(lines).rstrip("\n") + "\n"


def _cells(probe: Probe) -> tuple[str, str, str, str]:
    _, word, tone = verdict(probe)
    return f"{_MARKS[tone]} {word}", reason(probe), format_seconds(probe.seconds), PURPOSES[probe.purpose]


def suite(found: Capacity) -> bytes:
    """The answer as JUnit XML: whether a level holds, and each objective at the lower end of the interval.

    If no level holds, objectives are judged at the lowest level that was tried.
    """
    name = "capacity found" if found.at_least is None else f"at least {amount(found.at_least)} {UNITS[found.by]}"
    cases = [junit.Case("capacity", name, _OUTCOMES[found.outcome], words(found))]
    probe = found.at_low or min(found.levels or found.curve, key=lambda one: one.level, default=None)
    results = {} if probe is None else {result.slo: result for result in probe.slos}
    for objective in found.slos:
        result = results.get(objective)
        if probe is None or result is None:
            cases.append(junit.Case("objectives", objective, "skipped", "it was not judged"))
            continue
        unit = UNITS["concurrency"] if probe.purpose == "explore" else UNITS[found.by]
        message = f"at {amount(probe.level)} {unit}: {result.reason}"
        cases.append(junit.Case("objectives", objective, _OUTCOMES[judged(probe, result)], message))
    return junit.encode(f"capacity of {found.url}", cases)


def _page(report: CapacityReport) -> "Page":
    from inferometer.report.html import capacity_page  # noqa: PLC0415 (the other formats do without it)

    return capacity_page.capacity_page(*report)


SEARCH = Report[CapacityReport](
    "a search for the capacity",
    lambda report, color, width: capacity_report.render(report.found, color, width),
    lambda report: report.found.outcome == "met",
    _page,
    {
        "json": at_once(encode),
        "markdown": at_once(lambda report: summary(report.found)),
        "junit": at_once(lambda report: suite(report.found)),
    },
)
