"""Where a report goes: to the terminal, and to files on request. Every command that measures ends here, and so does `report`.

A `Report` says how one kind of result is shown. That of a run is here; those of what several runs make together are in `sweep.py`,
`repeats.py`, `compare.py`, `capacity_export.py` and `engines_export.py`.
"""

import gc
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

import click
import msgspec

from inferometer.analysis import gate, other_tools, settings, tail
from inferometer.analysis.summary import Summary
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.replacing import replaced
from inferometer.report import console, junit, markdown
from inferometer.report.document import Document, Section
from inferometer.report.exporters import EXPORTERS
from inferometer.report.json import encode
from inferometer.report.kept_text import excerpts
from inferometer.report.other_tools import other_tools_table
from inferometer.report.tail import timeline
from inferometer.report.width import WIDTH, columns
from inferometer.store import bodies_of

if TYPE_CHECKING:
    from inferometer.report.html.page import Page

Found = TypeVar("Found")
Writer = Callable[[Found, IO[bytes]], object]


class Report(msgspec.Struct, Generic[Found], frozen=True):
    """How one kind of result is shown, in the terminal and in files."""

    name: str
    """Of the kind, in words: `a sweep`."""
    render: Callable[[Found, bool, int], str]
    """For the terminal: with colours or without, and for a number of columns."""
    is_passed: Callable[[Found], bool]
    """Whether the exit status is 0."""
    page: Callable[[Found], "Page"]
    """The page of the HTML report."""
    writers: Mapping[str, Writer[Found]]
    """The other exports, by their names (exporters.py)."""
    widest: int = WIDTH

    @property
    def formats(self) -> list[str]:
        """The names of the exports that this kind has."""
        return [name for name in EXPORTERS if name == "html" or name in self.writers]

    def refuse(self, options: Sequence[str], where: str = "this is") -> None:
        """Raise UserError if there are options, which this kind of report does not have."""
        if options:
            raise UserError(
                f"{options[0]} is about a single run, and {where} {self.name}",
                f"give it to inferometer report with the folder of one run; {self.name} has {', '.join(self.formats)}",
            )

    def write(self, name: str, found: Found, file: IO[bytes]) -> None:
        """Write one export."""
        if name != "html":
            self.writers[name](found, file)
            return
        from inferometer.report.html.page import render  # noqa: PLC0415 (the other formats do without it)

        file.write(render(self.page(found)))


def at_once(make: Callable[[Found], bytes | str]) -> Writer[Found]:
    """The writer of an export that is made in one piece."""

    def write(found: Found, file: IO[bytes]) -> None:
        made = make(found)
        file.write(made.encode() if isinstance(made, str) else made)

    return write


def deliver(report: Report[Found], found: Found, exports: Mapping[str, str | None]) -> int:
    """Print the report, write the exports that have a path, and return the exit status: 0 if the result passes, else 1."""
    if "-" not in exports.values():
        click.echo(report.render(found, wants_color(), columns(most=report.widest)), nl=False, color=True)
    write_exports(report, found, exports)
    gc.freeze()  # the process ends here: without this, Python would search all it has imported for garbage, for 50 ms
    return 0 if report.is_passed(found) else 1


def write_exports(report: Report[Found], found: Found, exports: Mapping[str, str | None]) -> None:
    """Write the exports that have a path."""
    for name, path in exports.items():
        if path is not None:
            write_file(path, partial(report.write, name, found))


# --- a run -----------------------------------------------------------------------------------------------------------


class RunReport(msgspec.Struct, frozen=True):
    """A run, and what its report was asked for."""

    run: Run
    summary: Summary
    strict: bool = False
    explain: bool = False
    histogram: bool = False
    why: bool = False


def _render_run(found: RunReport, color: bool, width: int) -> str:
    file = settings.report(found.run.manifest)
    return console.render(
        found.run,
        found.summary,
        found.explain or file.explain,
        color,
        width,
        found.histogram or file.histogram,
        found.why or file.why,
    )


def _run_page(found: RunReport) -> "Page":
    from inferometer.report.html import run_page  # noqa: PLC0415

    return run_page.page(found.run, found.summary)


def _csv(found: RunReport, file: IO[bytes]) -> None:
    from inferometer.report import csv  # noqa: PLC0415 - pyarrow's part for CSV

    csv.write(found.run, file)


def _perf_csv(found: RunReport, file: IO[bytes]) -> None:
    from inferometer.report import perf_csv  # noqa: PLC0415

    perf_csv.write(found.run, found.summary, file)


RUN = Report(
    "a run",
    _render_run,
    lambda found: gate.is_passed(found.summary, found.strict),
    _run_page,
    {
        "json": at_once(lambda found: encode(found.summary)),
        "csv": _csv,
        "perf-csv": _perf_csv,
        "markdown": at_once(lambda found: markdown.run_summary(found.run, found.summary)),
        "junit": at_once(lambda found: junit.run_suite(found.run, found.summary)),
    },
)


# --- files -----------------------------------------------------------------------------------------------------------


def check_paths(paths: Mapping[str, str | None]) -> None:
    """Check before a measurement that the files can be written, by option; `-` is standard output.

    Raises UserError when one cannot, or when two options want standard output.
    """
    to_stdout = [f"{option} -" for option, path in paths.items() if path == "-"]
    if len(to_stdout) > 1:
        raise UserError(f"{' and '.join(to_stdout)} both write to standard output", "give one of them a file")
    for path in paths.values():
        if path is None or path == "-":
            continue
        if Path(path).is_dir():
            raise UserError(f"{path}: this is a folder", "give the path of a file")
        if not os.access(Path(path).parent, os.W_OK):
            raise UserError(
                f"{path}: its folder does not exist or cannot be written", "give a path that can be written"
            )


def check_exports(
    exports: Mapping[str, str | None], report: Report[Any] | None = None, from_file: Collection[str] = ()
) -> None:
    """Check before a measurement that exports can be written, and that this kind of report has them, unless that is not known yet.

    Those in `from_file` are set in the config's section `report`.
    """
    names = {name: f"report.{name.replace('-', '_')}" if name in from_file else f"--{name}" for name in exports}
    check_paths({names[name]: path for name, path in exports.items()})
    if report is not None:
        report.refuse([names[name] for name in exports if name not in report.formats])


def with_file_exports(
    exports: Mapping[str, str], of_file: Mapping[str, str], report: Report[Any] | None = None
) -> dict[str, str]:
    """Return the exports of the config's section `report` and those of the command line, which override them.

    Raises UserError when one cannot be written, or this kind of report does not have it."""
    merged = {**of_file, **exports}
    check_exports(merged, report, of_file.keys() - exports.keys())
    return merged


def wants_color() -> bool:
    """Whether standard output is a terminal that shows colours, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write_file(path: str, write: Callable[[IO[bytes]], object]) -> None:
    """Replace the file at `path` once all is written; `-` is standard output. Raises UserError when it cannot be written."""
    if path == "-":
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    try:
        with replaced(Path(path)) as partial, partial.open("wb") as file:
            write(file)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", "give a path that can be written") from None


def show_request(run: Run, id: int, json: str | None) -> int:
    """Print where the time of one request went, or write it as JSON."""
    found = tail.explain(run, id)
    if json != "-":
        _echo(timeline(found))
        for label, text in (excerpts(body) if (body := bodies_of(run.folder, [id]).get(id)) else {}).items():
            click.echo(f"{label}: {text}")
    if json is not None:
        write_file(json, lambda file: file.write(encode(found)))
    return 0


def show_as(run: Run, summary: Summary, tool: str, json: str | None) -> int:
    """Print what another tool would report, or write it as JSON."""
    found = other_tools.report_as(tool, run, summary)
    if json != "-":
        _echo(other_tools_table(found))
    if json is not None:
        write_file(json, lambda file: file.write(encode(found)))
    return 0


def _echo(section: Section) -> None:
    text = console.text(Document((), [section]), wants_color(), columns(), is_tight=True)
    click.echo(text, nl=False, color=True)
