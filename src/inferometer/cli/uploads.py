"""What the commands that measure say about a bucket that their output goes to."""

from pathlib import Path

import click


def finish_upload(folder: str | Path, status: int, quiet: bool = False) -> int:
    """Upload the folder if it belongs to a bucket and is not there yet, say where it is, and return the status of its report.

    Raises UserError when the upload fails: by then, the report has been printed.
    """
    from inferometer.conduct.uploading import finish  # noqa: PLC0415

    url = finish(Path(folder), None if quiet else lambda line: click.echo(line, err=True))
    if url is not None:
        click.echo(f"uploaded to {url}", err=True)
    return status
