"""The capacity of a server as JSON, Markdown and JUnit XML."""

import msgspec

from inferometer.capacity_search.result import Capacity, as_json
from inferometer.records import Manifest
from inferometer.report import junit, markdown
from inferometer.report.capacity import PURPOSES, UNITS, amount, basis, notes, reason, required, words
from inferometer.units import format_seconds

_MARKS = {"holds": "✅ holds", "fails": "❌ fails", "undecided": "❔ undecided"}
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
    lines += [markdown.escape(basis(found)), ""]
    remarks = notes(found)
    lines += [f"- {markdown.escape(note)}" for note in remarks] + ([""] if remarks else [])
    rows = [
        (
            amount(probe.level),
            _MARKS[probe.status],
            PURPOSES[probe.purpose],
            f"{probe.requests:,}",
            format_seconds(probe.seconds),
            reason(probe),
        )
        for probe in found.probes
    ]
    lines += markdown.table((UNITS[found.by], "verdict", "purpose", "requests", "time", "because"), rows)
    return "\n".join(lines).rstrip("\n") + "\n"


def suite(found: Capacity) -> bytes:
    """The answer as JUnit XML: whether a level holds, and each objective at the highest level that holds.

    If no level holds, objectives are judged at the lowest level that was tried.
    """
    name = "capacity found" if found.at_least is None else f"at least {amount(found.at_least)} {UNITS[found.by]}"
    cases = [junit.Case("capacity", name, _OUTCOMES[found.outcome], words(found))]
    probe = found.at_low or min(found.probes, key=lambda one: one.level, default=None)
    results = {} if probe is None else {result.slo: result for result in probe.slos}
    for objective in found.slos:
        result = results.get(objective)
        if probe is None or result is None:
            cases.append(junit.Case("objectives", objective, "skipped", "it was not judged"))
            continue
        message = f"at {amount(probe.level)} {UNITS[found.by]}: {result.reason}"
        cases.append(junit.Case("objectives", objective, _OUTCOMES[result.status], message))
    return junit.encode(f"capacity of {found.url}", cases)
