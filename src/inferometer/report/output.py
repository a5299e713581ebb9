"""Where a report goes: to the terminal, and to files on request. `run` and `report` both end here."""

import gc
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO

import click

from inferometer.analysis import gate, other_tools, settings, tail
from inferometer.analysis.summary import Summary
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.replacing import replaced
from inferometer.report import console
from inferometer.report.document import Document, Section
from inferometer.report.exporters import EXPORTERS
from inferometer.report.json import encode
from inferometer.report.kept_text import excerpts
from inferometer.report.other_tools import other_tools_table
from inferometer.report.tail import timeline
from inferometer.report.width import columns
from inferometer.store import bodies_of


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


def check_exports(exports: Mapping[str, str], from_file: Collection[str] = ()) -> None:
    """Check the paths of exports, by the exporter's name. Those in `from_file` are set in the config's section `report`."""
    check_paths({_setting(name, name in from_file): path for name, path in exports.items()})


def with_file_exports(exports: Mapping[str, str], of_file: Mapping[str, str]) -> dict[str, str]:
    """Return the exports of the config's section `report` and those of the command line, which override them.

    Raises UserError when one cannot be written."""
    merged = {**of_file, **exports}
    check_exports(merged, of_file.keys() - exports.keys())
    return merged


def _setting(name: str, is_in_file: bool) -> str:
    return f"report.{name.replace('-', '_')}" if is_in_file else f"--{name}"


def deliver(
    run: Run,
    summary: Summary,
    exports: Mapping[str, str],
    explain: bool = False,
    histogram: bool = False,
    strict: bool = False,
    why: bool = False,
) -> int:
    """Print the report, write the exports, and return the exit status.

    It is 0 for a run that passes (gate.py), and 1 otherwise.
    """
    if "-" not in exports.values():
        file = settings.report(run.manifest)
        text = console.render(
            run,
            summary,
            explain or file.explain,
            wants_color(),
            columns(),
            histogram or file.histogram,
            why or file.why,
        )
        click.echo(text, nl=False, color=True)
    for name, path in exports.items():
        write_file(path, lambda file, write=EXPORTERS[name].write: write(run, summary, file))  # type: ignore[misc]
    gc.freeze()  # the process ends here: without this, Python would search all it has imported for garbage, for 50 ms
    return 0 if gate.is_passed(summary, strict) else 1


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
