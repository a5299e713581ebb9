"""The capacity of a server as JSON, Markdown and JUnit XML."""

import msgspec

from inferometer.capacity_search.result import Capacity, Probe, as_json
from inferometer.records import Manifest
from inferometer.report import junit, markdown
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
from inferometer.units import format_seconds

_MARKS = {"good": "✅", "bad": "❌", "warn": "❔"}
_OUTCOMES = {"met": "passed", "missed": "failed", "undecided": "skipped"}
_REQUIRED = {"met": "✅", "missed": "❌", "undecided": "❔"}


def encode(found: Capacity, manifest: Manifest | None) -> bytes:
    """The answer as JSON."""
    return msgspec.json.format(msgspec.json.encode(as_json(found, words(found), manifest)), indent=2) + b"\n"


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
