"""JUnit XML, which CI systems show as test results: the checks and objectives of a run, or the conditions of a comparison.

What is undecided is a skipped test: it neither passed nor failed. The exit status of the command is what fails a build.
"""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import NamedTuple

from inferometer.analysis.comparison import Comparison
from inferometer.analysis.gate import obstacles
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import formatting
from inferometer.report.compare import stages_of


class Case(NamedTuple):
    """One test case."""

    group: str
    name: str
    outcome: str
    """passed, failed or skipped."""
    message: str


def encode(suite: str, cases: Sequence[Case]) -> bytes:
    """The file with one suite."""
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.outcome == "failed" for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.outcome == "skipped" for case in cases)),
    }
    root = ET.Element("testsuites", {"name": "inferometer"} | counts)
    element = ET.SubElement(root, "testsuite", {"name": _clean(suite)} | counts)
    for case in cases:
        test = ET.SubElement(element, "testcase", {"classname": _clean(case.group), "name": _clean(case.name)})
        message = _clean(case.message)
        if case.outcome == "failed":
            ET.SubElement(test, "failure", {"message": message}).text = message
        elif case.outcome == "skipped":
            ET.SubElement(test, "skipped", {"message": message})
        elif message:
            ET.SubElement(test, "system-out").text = message
    ET.indent(root)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode").encode() + b"\n"


def run_cases(summary: Summary, prefix: str = "") -> list[Case]:
    """One case per check and per objective; `prefix` goes before their groups. A failed check with which a run passes is skipped."""
    failing = {check.name for check in obstacles(summary)}
    cases = [
        Case(
            f"{prefix}checks",
            check.name,
            "failed" if check.name in failing else "skipped" if check.status == "fail" else "passed",
            check.message,
        )
        for check in summary.checks
    ]
    outcomes = {"met": "passed", "missed": "failed", "undecided": "skipped"}
    return cases + [
        Case(f"{prefix}objectives", result.slo, outcomes[result.status], result.reason) for result in summary.slos
    ]


def run_suite(run: Run, summary: Summary) -> bytes:
    return encode(formatting.describe_target(run.manifest), run_cases(summary))


def comparison_suite(found: Sequence[Comparison]) -> bytes:
    """One case per condition, and one that passes per metric, with its sentence."""
    outcomes = {"passes": "passed", "fails": "failed", "undecided": "skipped"}
    cases = []
    for each in found:
        where = f"{each.b.label} against {each.a.label}"
        for one in each.conditions:
            name = f"{one.stage}: {one.condition}" if one.stage else one.condition
            cases.append(Case(f"{where}.fail-if", name, outcomes[one.status], one.reason))
        for stage, metrics in stages_of(each):
            group = f"{where}.{stage}" if stage else where
            cases += [Case(group, name, "passed", f"{one.verdict}: {one.sentence}") for name, one in metrics.items()]
    return encode("inferometer compare", cases)


def _clean(text: str) -> str:
    """A text without characters that XML does not allow."""
    return formatting.one_line(text, 1000)
