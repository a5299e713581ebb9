"""`inferometer report`: the report of a stored run again, byte for byte, or an export of it.

A complete folder is not changed, except by `--open`, which adds report.html. A run that did not end is completed from what it had recorded.
"""

from pathlib import Path
from typing import Any

import click

from inferometer.cli.options import cost_options, export_options, percentile_option, slo_options
from inferometer.errors import UserError, named

_TAIL = "tail"
"""What --why stands for without an id."""


class _WithOptionalId(click.Command):
    """Takes only a number for the id of --why, so that `report --why RUN_DIR` is not the request RUN_DIR."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for index, arg in enumerate(args):
            if arg == "--why" and not (args[index + 1 : index + 2] and args[index + 1].isdecimal()):
                args = [*args[:index], f"--why={_TAIL}", *args[index + 1 :]]
        return super().parse_args(ctx, args)


@click.command(cls=_WithOptionalId, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run_dir", metavar="RUN_DIR")
@slo_options
@cost_options
@export_options
@percentile_option
@click.option(
    "--open",
    "is_opened",
    is_flag=True,
    help="Open the HTML report in a browser. Without --html, it is RUN_DIR/report.html.",
)
@click.option("--histogram", is_flag=True, help="Add histograms of the time to first token and the end-to-end time.")
@click.option(
    "--why",
    metavar="[ID]",
    help="Add why the slow requests were slow: which cause explains how much of p99 - p50. With the id of a request: where "
    "its time went.",
)
@click.option(
    "--as",
    "tool",
    type=click.Choice(["vllm-bench", "inference-perf"]),
    help="Print what this tool would report for the same requests, by its own definitions, beside our figures and the reason "
    "for each difference. --json then writes that.",
)
@click.option("--explain", is_flag=True, help="Add the definition of every metric and check.")
def command(
    run_dir: str,
    slos: tuple[str, ...],
    allow_undecided: bool,
    cost: dict[str, Any],
    exports: dict[str, str],
    percentiles: list[float],
    is_opened: bool,
    histogram: bool,
    why: str | None,
    tool: str | None,
    explain: bool,
) -> int:
    """Print the report of the run in the folder RUN_DIR again, or export it.

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
    inferometer report runs/LATEST --price-per-hour 2.5/gpu --gpus 8   what it costs

    Without --slo and the price, the report is the same, byte for byte, as the one at the end of the run. If the run was killed, the report is made from
    what had been recorded until then.

    Exit status: 0 the run is VALID and meets its objectives, 1 it is INVALID, or an objective is missed or undecided, 2 bad
    input, 3 internal error.
    """
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.conduct.sweep import is_sweep  # noqa: PLC0415
    from inferometer.report.capacity_output import is_capacity  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver, show_as, show_request  # noqa: PLC0415

    if is_opened and exports.get("html") == "-":
        raise UserError(
            "--open needs a file, but --html writes to standard output", "give --html a path, or leave it out"
        )
    id = _id_of(why)
    if tool is not None and set(exports) - {"json"}:
        raise UserError(f"--as {tool} has no --{min(set(exports) - {'json'})}", "use --json, or leave out --as")
    check_exports(exports)
    conduct.parse_slos(slos, "--slo")
    given = {"cost": cost, "report": {"percentiles": percentiles} if percentiles else {}}
    changes = {name: keys for name, keys in given.items() if keys}
    if is_sweep(Path(run_dir)):
        return _report_sweep(
            run_dir, slos, exports, allow_undecided, is_opened, is_single=tool is not None or why is not None
        )
    if is_capacity(run_dir):
        return _show_capacity(run_dir, exports, is_opened, bool(slos or why or tool or histogram))
    try:
        with named({"cost.cheapest_at": "--cheapest-at"}):
            run, summary = conduct.open_run(run_dir, slos or None, changes)
    except conduct.UnsavedError as error:
        deliver(error.run, error.summary, exports, explain, histogram, why=why is not None)
        raise
    if tool is not None:
        return show_as(run, summary, tool, exports.get("json"))
    if id is not None:
        return show_request(run, id, exports.get("json"))
    if is_opened:
        exports.setdefault("html", str(run.folder / "report.html"))
        check_exports(exports)
    status = deliver(run, summary, exports, explain, histogram, allow_undecided, why is not None)
    if is_opened:
        _open(Path(exports["html"]).resolve())
    return status


def _report_sweep(
    folder: str, slos: tuple[str, ...], exports: dict[str, str], allow_undecided: bool, is_opened: bool, is_single: bool
) -> int:
    """Report a folder of several runs; `is_single`: an option was given that is about a single run."""
    from inferometer.conduct.sweep import open_sweep  # noqa: PLC0415
    from inferometer.report.output import check_exports  # noqa: PLC0415
    from inferometer.report.sweep import check_sweep_exports, deliver_sweep  # noqa: PLC0415

    if is_single:
        raise UserError(
            f"{folder}: --why and --as are about a single run, and this is a sweep", "name a run in that folder"
        )
    if is_opened:
        exports.setdefault("html", str(Path(folder) / "report.html"))
    check_sweep_exports(exports)
    check_exports(exports)
    status = deliver_sweep(*open_sweep(Path(folder), slos or None), exports, allow_undecided)


def _show_capacity(folder: str, exports: dict[str, str], is_opened: bool, has_run_options: bool) -> int:
    """Print the answer of a search for the capacity again, or export it."""
    from inferometer.report.capacity_output import FORMATS, deliver_capacity, read  # noqa: PLC0415

    if has_run_options or not exports.keys() <= set(FORMATS):
        formats = ", ".join(f"--{name}" for name in FORMATS)
        raise UserError(
            f"{folder}: this is a search for the capacity, which has only {formats} and --open",
            "give the folder of one of its probes for a report of that run",
        )
    found, manifest = read(folder)
    if is_opened:
        exports.setdefault("html", str(Path(folder) / "report.html"))
    status = deliver_capacity(found, manifest, exports)
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


def _open(path: Path) -> None:
    """Show the file in a browser; say where it is if there is no browser."""
    import webbrowser  # noqa: PLC0415

    if not webbrowser.open(path.as_uri()):
        click.echo(f"no browser was found; the report is {path}", err=True)
