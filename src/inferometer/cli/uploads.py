"""What the commands that measure several runs show meanwhile; and how those that measure end: with an upload to the bucket that
their output goes to, and with what they say last."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

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
