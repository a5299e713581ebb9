"""`inferometer runs push`: upload a run, or what is missing of it."""

from pathlib import Path

import click

from inferometer.errors import UserError


@click.command("push", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", metavar="FOLDER... [URL]", nargs=-1, type=click.Path())
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def command(names: tuple[str, ...], quiet: bool) -> None:
    """Upload the run in FOLDER to a bucket: to URL (s3://BUCKET/PREFIX, gs://BUCKET/PREFIX), or to the one that it belongs to. What is there already is skipped, so an upload that failed goes on where it ended.

    \b
    What is missing of a run whose `output` is a bucket
      inferometer runs push runs/20261116-101500-aaaa
    A run that was measured into a folder
      inferometer runs push runs/LATEST s3://bucket/prefix

    FOLDER may also be the folder of a sweep, of a search for the capacity, of `run --repeat`, or of `ab`. The folder stays as it is.
    An endpoint other than Amazon's or Google's comes from the run's own config, or from AWS_ENDPOINT_URL.

    Exit status: 0 everything is uploaded, 2 it is not.
    """
    from inferometer.conduct.uploading import push_again  # noqa: PLC0415
    from inferometer.config.storage import is_remote, split_url  # noqa: PLC0415

    url = names[-1] if names and is_remote(names[-1]) else None
    folders = names[:-1] if url is not None else names
    if not folders:
        raise UserError(
            "there is no folder to upload", "give one: inferometer runs push runs/LATEST s3://BUCKET/PREFIX"
        )
    if url is not None:
        split_url(url)
    for name in folders:
        folder = Path(name)
        if not folder.is_dir():
            raise UserError(f"{name}: there is no such folder", "give the folder of a run, such as runs/LATEST")
        stored = push_again(folder, url, None if quiet else lambda line: click.echo(line, err=True))
        click.echo(f"uploaded to {stored}", err=True)
