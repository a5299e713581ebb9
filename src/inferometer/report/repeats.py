"""Several runs in the terminal and in files: for repeats, how much the figures vary between and within runs; else a table of the runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from inferometer.analysis.comparable import are_repeats
from inferometer.analysis.comparison_text import title
from inferometer.analysis.gate import is_passed
from inferometer.analysis.repeats import Repeats, RunFigures, RunList, Variation, list_runs, summarise_repeats
from inferometer.analysis.summary import Measured
from inferometer.report import console, formatting, junit, markdown
from inferometer.report.compare import amount
from inferometer.report.document import Document, Section, Table
from inferometer.report.json import encode
from inferometer.report.output import Report, at_once

if TYPE_CHECKING:
    from inferometer.report.html.page import Page


_HEADER = ("mean", "95 % CI of the mean", "between runs", "within a run")
_MINOR = ("mean", "p90", "p95")
_LISTED = ("throughput.requests", "ttft.p50", "ttft.p99", "itl.p99", "e2e.p50", "e2e.p99")
"""The figures of runs that are not repeats of each other."""


class RunsReport(NamedTuple):
    """Several runs, and what they were named by. Those that are not repeats of each other have no variation: their figures are listed."""

    where: str
    measured: Sequence[Measured]
    strict: bool = False

    @property
    def found(self) -> Repeats | RunList:
        return summarise_repeats(self.measured) if are_repeats(self.measured) else list_runs(self.measured)


def _junit(report: RunsReport) -> bytes:
    runs = enumerate(report.measured, 1)
    cases = [case for number, (_, summary) in runs for case in junit.run_cases(summary, f"run {number}.")]
    return junit.encode(report.where, cases)


def _page(report: RunsReport) -> "Page":
    from inferometer.report.html import runs_page  # noqa: PLC0415 (the other formats do without it)

    return runs_page.runs_page(report.measured)


def render(where: str, found: Repeats | RunList, color: bool, width: int) -> str:
    """Render the runs for `width` columns: the variation of each stage, or the list of the runs."""
    return console.text(document(where, found), color, width)


def document(where: str, found: Repeats | RunList, is_complete: bool = False) -> Document:
    """The runs: the variation of each stage, or a list of them; `is_complete`: with the figures that a terminal leaves out."""
    if isinstance(found, RunList):
        blocks = [_list(found)]
    else:
        blocks = [variation_table(name, metrics, is_complete) for name, metrics in _stages(found)]
    sections = [Section(f"runs-{number}", "Runs", [block]) for number, block in enumerate(blocks)]
    return Document([((_verdicts(found), "strong"),)], sections, where)


def _verdicts(found: Repeats | RunList) -> str:
    by_run = (
        dict(zip(found.runs, found.verdicts, strict=True))
        if isinstance(found, Repeats)
        else {one.run: one.verdict for one in found.runs}
    )
    invalid = [number for number, verdict in enumerate(by_run.values(), 1) if verdict == "INVALID"]
    which = f", INVALID: {', '.join(map(str, invalid))}" if invalid else ", all VALID"
    return f"{len(by_run)} run{'' if len(by_run) == 1 else 's'}{which}"


def _list(found: RunList) -> Table:
    names = _listed(found)
    rows = [
        (label, *(_figure(name, one) for name in names)) for label, one in zip(_labels(found), found.runs, strict=True)
    ]
    headers = [title(name).replace("throughput (", "").replace(")", "") for name in names]
    note = "these runs are not repeats of one config: inferometer compare shows what differs, and how clearly"
    return Table("run", headers, rows, [title(name) for name in ("itl.p99", "e2e.p50", "ttft.p50")], notes=[note])


def _listed(found: RunList) -> list[str]:
    return [name for name in _LISTED if any(name in one.figures for one in found.runs)]


def _labels(found: RunList) -> list[str]:
    """The numbers of the runs and the names of their folders, with the stage if there are several, and a mark if the run is INVALID."""
    numbers = {run: number for number, run in enumerate(dict.fromkeys(one.run for one in found.runs), 1)}
    names = [f"{numbers[one.run]} {formatting.one_line(Path(one.run).name, 24)}" for one in found.runs]
    return [
        " ".join(
            filter(None, (name, formatting.one_line(one.stage, 24), "(INVALID)" if one.verdict == "INVALID" else ""))
        )
        for name, one in zip(names, found.runs, strict=True)
    ]


def _figure(name: str, one: RunFigures) -> str:
    return amount(one.figures.get(name), "s" if "." in name and not name.startswith("throughput") else "/s")


def _stages(found: Repeats) -> list[tuple[str, dict[str, Variation]]]:
    return [(stage.name, stage.metrics) for stage in found.stages] or [("", found.metrics)]


def variation_table(name: str, metrics: Mapping[str, Variation], is_complete: bool) -> Table:
    shown = {key: one for key, one in metrics.items() if is_complete or not key.endswith(_MINOR)}
    rows = [(title(key), *_cells(one)) for key, one in shown.items()]
    note = "standard deviation between runs, and standard error within a run, both as a share of the mean"
    return Table(name or "variation", list(_HEADER), rows, notes=[note])


def _cells(one: Variation) -> tuple[str, ...]:
    low, high = one.ci
    interval = "-" if low is None else f"{amount(low, one.unit)} .. {amount(high, one.unit)}"
    return amount(one.mean, one.unit), interval, _share(one.between), _share(one.within)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2g} %"


RUNS = Report[RunsReport](
    "several runs",
    lambda report, color, width: render(report.where, report.found, color, width),
    lambda report: all(is_passed(summary, report.strict) for _, summary in report.measured),
    _page,
    {
        "json": at_once(lambda report: encode(report.found)),
        "markdown": at_once(lambda report: markdown.text(document(report.where, report.found, is_complete=True))),
        "junit": at_once(_junit),
    },
)
