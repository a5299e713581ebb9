"""What the commands that measure several runs show meanwhile; and how commands end: results as JSON, an upload to the bucket that their
output goes to, and what they say last."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from inferometer.report.live import LiveView


def progress(quiet: bool) -> "Callable[[str], LiveView | None]":
    """What to call before each of several runs: it prints the line, and shows the run."""
    from inferometer.report.live import LiveView  # noqa: PLC0415

    def note(line: str) -> LiveView | None:
        if quiet:
            return None
        click.echo(line, err=True)
        return LiveView()

    return note


def finish(folder: str | Path, status: int, quiet: bool = False, answer: Iterable[str] = ()) -> int:
    """Upload the folder if it belongs to a bucket and is not there yet, say where it is, what the answer is and how to open it, and return the status.

    Raises UserError when the upload fails: by then, the report has been printed.
    """
    from inferometer.conduct import uploading  # noqa: PLC0415
    from inferometer.report.closing import say_last  # noqa: PLC0415

    url = uploading.finish(Path(folder), None if quiet else lambda line: click.echo(line, err=True))
    if url is not None:
        click.echo(f"uploaded to {url}", err=True)
    if not quiet:
        say_last(folder, answer)
    return status


def write_json(path: str | None, results: Any) -> None:
    """Write results as indented JSON, if there is a path; - is standard output."""
    import msgspec  # noqa: PLC0415

    from inferometer.report.output import write_file  # noqa: PLC0415

    if path is not None:
        encoded = msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n"
        write_file(path, lambda file: file.write(encoded))
