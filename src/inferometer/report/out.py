"""Where a report goes: the console, and files where asked for. `run` and `report` both end here."""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import click

from inferometer.analysis.summary import Summary
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.report import console, csv, perf_csv
from inferometer.report import json as summary_json
from inferometer.report.width import columns


def check_paths(json_path: str | None, csv_path: str | None, perf_csv_path: str | None = None) -> None:
    """Before anything is measured: can all go where they are sent?"""
    paths = {"--json": json_path, "--csv": csv_path, "--perf-csv": perf_csv_path}
    wanting = [f"{flag} -" for flag, path in paths.items() if path == "-"]
    if len(wanting) > 1:
        raise UserError(f"{' and '.join(wanting)} both want standard output", "give one of them a file")
    for path in paths.values():
        if path in (None, "-"):
            continue
        if Path(str(path)).is_dir():
            raise UserError(f"{path}: is a folder", "give the path of a file")
        if not os.access(Path(str(path)).parent, os.W_OK):
            raise UserError(f"{path}: its folder is not there, or cannot be written", "give a path that can be written")


def deliver(
    run: Run,
    summary: Summary,
    json_path: str | None,
    csv_path: str | None,
    explain: bool,
    perf_csv_path: str | None = None,
) -> int:
    """Print and export; the exit status that the verdict calls for."""
    if "-" not in (json_path, csv_path, perf_csv_path):
        click.echo(console.render(run, summary, explain, wants_color(), columns()), nl=False, color=True)
    if json_path is not None:
        export(json_path, lambda file: file.write(summary_json.encode(summary)))
    if csv_path is not None:
        export(csv_path, lambda file: csv.write(run, file))
    if perf_csv_path is not None:
        export(perf_csv_path, lambda file: perf_csv.write(run, summary, file))
    gc.freeze()  # the process ends here: without this, Python would look for garbage in all it has imported, for 50 ms
    return 0 if summary.verdict == "VALID" else 1


def wants_color() -> bool:
    """Colours for a terminal, unless NO_COLOR says otherwise."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def export(path: str, write: Callable[[IO[bytes]], object]) -> None:
    """Have `write` write to the file at `path`; - is standard output."""
    if path == "-":
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    try:
        with Path(path).open("wb") as file:
            write(file)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", "give a path that can be written") from None
