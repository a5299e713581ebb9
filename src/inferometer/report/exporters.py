"""Export formats: one row each. The options of `run` and `report` (`--json`, `--csv` ...) are made from this table.

Building the command line must be fast, so this module imports nothing heavy before it exports.
"""

from collections.abc import Callable
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from inferometer.analysis.summary import Summary
    from inferometer.records import Run


class Exporter(NamedTuple):
    write: "Callable[[Run, Summary, IO[bytes]], object]"
    help: str
    """What the file holds, as the help of the option says it."""


def _json(run: "Run", summary: "Summary", file: IO[bytes]) -> None:
    from inferometer.report import json  # noqa: PLC0415

    file.write(json.encode(summary))


def _html(run: "Run", summary: "Summary", file: IO[bytes]) -> None:
    from inferometer.report.html import run_page  # noqa: PLC0415

    file.write(run_page.encode(run, summary))


def _csv(run: "Run", summary: "Summary", file: IO[bytes]) -> None:
    from inferometer.report import csv  # noqa: PLC0415

    csv.write(run, file)


def _perf_csv(run: "Run", summary: "Summary", file: IO[bytes]) -> None:
    from inferometer.report import perf_csv  # noqa: PLC0415

    perf_csv.write(run, summary, file)


def _markdown(run: "Run", summary: "Summary", file: IO[bytes]) -> None:
    from inferometer.report import markdown  # noqa: PLC0415

    file.write(markdown.run_summary(run, summary).encode())


def _junit(run: "Run", summary: "Summary", file: IO[bytes]) -> None:
    from inferometer.report import junit  # noqa: PLC0415

    file.write(junit.run_suite(run, summary))


EXPORTERS = {
    "json": Exporter(_json, "Write the summary as JSON: every figure, check and definition."),
    "html": Exporter(_html, "Write the report as one HTML file with charts, which works without a network."),
    "csv": Exporter(_csv, "Write one row per request as CSV."),
    "perf-csv": Exporter(_perf_csv, "Write one row per stage as CSV, with the columns of perf_analyzer."),
    "markdown": Exporter(_markdown, "Write a summary as Markdown, for a pull request or a CI job."),
    "junit": Exporter(_junit, "Write checks and objectives as JUnit XML, one test case each."),
}
