"""`inferometer report`: the report of a stored run again, byte for byte, or an export of it; or one report of several runs.

A complete folder is not changed, except by `--open`, which adds report.html. A run that did not end is completed from what it had recorded.
What a folder is, and so which report it gets, is decided by what it contains (conduct/kinds.py).
"""

from pathlib import Path
from typing import Any

import click

from inferometer.cli import startup
from inferometer.cli.options import Command, export_options, options_of, put_options
from inferometer.errors import UserError, named

_TAIL = "tail"
"""What --why stands for without an id."""


class _WithOptionalId(Command):
    """Takes only a number for the id of --why, so that `report --why RUN_DIR` is not the request RUN_DIR."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for index, arg in enumerate(args):
            if arg == "--why" and not (args[index + 1 : index + 2] and args[index + 1].isdecimal()):
                args = [*args[:index], f"--why={_TAIL}", *args[index + 1 :]]
        return super().parse_args(ctx, args)


@click.command(cls=_WithOptionalId)
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True)
@options_of("report")
@export_options
def command(
    run_dirs: tuple[str, ...],
    exports: dict[str, str],
    why: str | None,
    **given: Any,
) -> int:
    """Print the report of the run in the folder RUN_DIR again, or export it. Several runs give one report.

    \b
    inferometer report runs/LATEST                  the last run
    inferometer report runs/LATEST --explain        with all definitions
    inferometer report runs/LATEST --open           with charts, in a browser
    inferometer report runs/LATEST --why            why the tail is slow
    inferometer report runs/LATEST --why 1234       where one request's time went
    inferometer report runs/LATEST --as vllm-bench  as vllm bench serve would
    inferometer report runs/LATEST --csv out.csv    one row per request
    inferometer report runs/LATEST --json - | jq .throughput
    inferometer report runs/LATEST --slo 'tpot.p95 < 50ms'   by other objectives
    inferometer report runs/LATEST --price-per-hour 2.5/gpu --gpus 8   its cost
    inferometer report 'runs/2026*' --html runs.html    several runs in one page
    inferometer report s3://bucket/prefix/LATEST    the last run in a bucket

    Without options, the report is the same, byte for byte, as the one at the end of the run. If the run was killed, the report is made from
    what had been recorded until then. RUN_DIR may also be the folder of a sweep, of a search for the capacity, of `run --repeat` (the
    variation between runs), of `ab` (the comparison), or of `engines` (which engine is best), or a quoted glob.

    Exit status: 0 the run is VALID and meets its objectives, 1 it is INVALID, or an objective is missed, 2 bad
    input, 3 internal error.
    """
    startup.prepare()
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.conduct.comparing import folders_of  # noqa: PLC0415
    from inferometer.conduct.kinds import KINDS, Asked, kind_of  # noqa: PLC0415
    from inferometer.conduct.remote import local_names  # noqa: PLC0415
    from inferometer.report.output import RUN, RunReport, check_exports, deliver, show_as, show_request  # noqa: PLC0415

    is_opened, tool, has_why = given["open"], given["as"], why is not None
    if is_opened and exports.get("html") == "-":
        raise UserError(
            "--open needs a file, but --html writes to standard output", "give --html a path, or leave it out"
        )
    if tool is not None and set(exports) - {"json"}:
        raise UserError(f"--as {tool} has no --{min(set(exports) - {'json'})}", "use --json, or leave out --as")
    changes: dict[str, Any] = {}
    put_options(changes, "report", given)
    slos = tuple(changes.pop("slo", ()))
    names = local_names(run_dirs)
    folders = [folder for name in names for folder in folders_of(name)]
    if len(folders) == 1:
        names = (str(folders[0]),)
    kind = KINDS[kind_of(names)]
    if is_opened and "html" not in exports:
        exports["html"] = str(_home(names, kind.report is RUN) / "report.html")
    check_exports(exports)
    single = {"--why": why} | {f"--{name}": given[name] for name in ("as", "histogram", "explain", "percentiles")}
    others = [name for name, value in single.items() if value and kind.report is not RUN]
    others += [f"--{name}" for name in exports if name not in kind.report.formats]
    others += ["--slo"] if slos and not kind.takes_slos else []
    others += ["--price-per-hour, --gpus or --cheapest-at"] if "cost" in changes and not kind.takes_costs else []
    kind.report.refuse(others, f"{names[0] if len(names) == 1 else 'the command line'} has")
    strict, explain, histogram = given["strict"], given["explain"], given["histogram"]
    asked = Asked(slos or None, changes, strict, explain, histogram, has_why, _skip)
    id = _id_of(why)
    try:
        with named({"cost.cheapest_at": "--cheapest-at"}):
            found = kind.open(names, asked)
    except conduct.UnsavedError as error:
        if kind.report is RUN:
            deliver(RUN, RunReport(error.run, error.summary, strict, explain, histogram, has_why), exports)
        raise
    if tool is not None:
        status = show_as(found.run, found.summary, tool, exports.get("json"))
    elif id is not None:
        status = show_request(found.run, id, exports.get("json"))
    else:
        status = deliver(kind.report, found, exports)
    if is_opened:
        _open(Path(exports["html"]).resolve())
    return status


def _id_of(why: str | None) -> int | None:
    """The request that --why is about; None if it is about the whole tail, or is not given."""
    if why is None or why == _TAIL:
        return None
    if not why.isdecimal():
        raise UserError(
            f"--why {why}: expected the id of a request", "ids are whole numbers, see --csv; --why alone is about all"
        )
    return int(why)


def _home(names: tuple[str, ...], is_run: bool) -> Path:
    """The folder that the page of --open is written to."""
    from inferometer.conduct.comparing import runs_of  # noqa: PLC0415

    if is_run:
        return runs_of(names[0])[0].resolve()
    if len(names) > 1 or not Path(names[0]).is_dir():
        raise UserError("--open of several runs needs a path for the page", "add --html PATH")
    return Path(names[0])


def _skip(error: UserError) -> None:
    click.echo(f"left out: {error}", err=True)


def _open(path: Path) -> None:
    """Show the file in a browser; say where it is if there is no browser."""
    import webbrowser  # noqa: PLC0415

    if not webbrowser.open(path.as_uri()):
        click.echo(f"no browser was found; the report is {path}", err=True)
