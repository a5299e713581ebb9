"""`inferometer runs`: what is stored in a folder or a bucket. `inferometer runs push` is in runs_push.py."""

import importlib
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from inferometer.cli.uploads import write_json
from inferometer.errors import UserError, named

_PIPE_WIDTH = 160
"""Columns of the table if standard output is a file or a pipe."""
_STATES = ("complete", "incomplete", "running", "not-uploaded", "damaged")


class _Runs(click.Command):
    """The command, with `push` as the only command within it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] != ["push"]:
            return super().make_context(info_name, args, parent, **extra)
        push: click.Command = importlib.import_module("inferometer.cli.runs_push").command
        return push.make_context(f"{info_name} push", args[1:], parent, **extra)


@click.command(cls=_Runs, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("where", metavar="[FOLDER|URL]", default="runs")
@click.option("--model", metavar="TEXT", help="Only runs whose model contains this text.")
@click.option(
    "--since", metavar="TIME", help="Only runs that started in the last 2h or 7d, or since a date: 2026-11-16."
)
@click.option(
    "--verdict", type=click.Choice(["VALID", "INVALID"], case_sensitive=False), help="Only runs with this verdict."
)
@click.option("--state", type=click.Choice(_STATES), help="Only runs in this state.")
@click.option(
    "--json", "json_path", is_flag=False, flag_value="-", metavar="[PATH]",
    help="Write a list of objects as JSON, one per run. Without PATH, or with -, to standard output.",
)  # fmt: skip
def command(
    where: str, model: str | None, since: str | None, verdict: str | None, state: str | None, json_path: str | None
) -> None:
    """List the runs in FOLDER (default: runs) or at the URL of a bucket, the newest last.

    \b
    inferometer runs
    inferometer runs s3://bucket/prefix --model llama --since 7d
    inferometer runs --verdict INVALID
    inferometer runs --json | jq '.[] | select(.rate > 100) | .folder'

    A sweep, a search for the capacity, `run --repeat` and `ab` are one line each, with the number of their runs.

    \b
    complete      everything is stored
    incomplete    it was killed, or its upload has not ended. If it was killed,
                  `inferometer report FOLDER` recovers what it had recorded.
    running       it is being measured
    not uploaded  complete here, but not in the bucket that it belongs to:
                  `inferometer runs push FOLDER` uploads the rest
    damaged       its manifest cannot be read

    `inferometer runs push FOLDER URL` uploads a run; see `inferometer runs push --help`.
    """

    from inferometer.conduct.catalog import catalog, chosen  # noqa: PLC0415
    from inferometer.config.storage import is_remote  # noqa: PLC0415
    from inferometer.report.output import check_paths, wants_color  # noqa: PLC0415
    from inferometer.report.runs_table import render  # noqa: PLC0415

    if json_path is not None and (is_remote(json_path) or Path(json_path).is_dir()):  # runs --json FOLDER
        where, json_path = json_path, "-"
    check_paths({"--json": json_path})
    start = _since(since)
    with named({"output": "the URL", "storage.endpoint": "the endpoint"}):
        entries = catalog(where)
    found = chosen(entries, model, start, verdict, state.replace("-", " ") if state else None)
    if json_path is not None:
        write_json(json_path, found)
    elif found:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
        click.echo(render(found, width, wants_color()), nl=False, color=True)
    else:
        click.echo(f"{where}: {'no run matches' if entries else 'there are no runs'}", err=True)


def _since(text: str | None) -> datetime | None:
    """The time that --since means: a duration before now, or a date."""
    if text is None:
        return None
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
    try:
        if text[-1:] in units and text[:-1].replace(".", "", 1).isdecimal():
            return datetime.now().astimezone() - timedelta(seconds=float(text[:-1]) * units[text[-1]])
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UserError(f"--since {text}: not a time", "write, for example, 2h, 7d or 2026-11-16") from None
