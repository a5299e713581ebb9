"""`inferometer report`: the report of a stored run again, byte for byte, or an export of it; or one report of several runs.

A complete folder is not changed, except by `--open`, which adds report.html. A run that did not end is completed from what it had recorded.
What a folder is, and so which report it gets, is decided by what it contains (`_FOLDERS`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from inferometer.cli.options import export_options, slo_options
from inferometer.errors import UserError

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
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True)
@slo_options
@export_options
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
    run_dirs: tuple[str, ...],
    slos: tuple[str, ...],
    allow_undecided: bool,
    exports: dict[str, str],
    is_opened: bool,
    histogram: bool,
    why: str | None,
    tool: str | None,
    explain: bool,
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
    inferometer report 'runs/2026*' --html runs.html    several runs in one page

    Without --slo, the report is the same, byte for byte, as the one at the end of the run. If the run was killed, the report is made from
    what had been recorded until then. RUN_DIR may also be a folder of `run --repeat`, of which the variation between runs is printed, or of
    `ab`, of which the comparison is printed, or a quoted glob.

    Exit status: 0 the run is VALID and meets its objectives, 1 it is INVALID, or an objective is missed or undecided, 2 bad
    input, 3 internal error.
    """
    from inferometer.report.output import check_exports  # noqa: PLC0415

    if is_opened and exports.get("html") == "-":
        raise UserError(
            "--open needs a file, but --html writes to standard output", "give --html a path, or leave it out"
        )
    if tool is not None and set(exports) - {"json"}:
        raise UserError(f"--as {tool} has no --{min(set(exports) - {'json'})}", "use --json, or leave out --as")
    check_exports(exports)
    report = _report_of(run_dirs)
    if is_opened and report is not _report_run:
        _set_page(run_dirs, exports)
    only_single = {"--why": why, "--as": tool, "--histogram": histogram, "--explain": explain}
    if report is not _report_run and (given := [name for name, value in only_single.items() if value]):
        raise UserError(f"{given[0]} is about a single run", "give the folder of one run")
    options: dict[str, Any] = {"why": why, "tool": tool, "histogram": histogram, "explain": explain}
    status = report(run_dirs, exports, slos, allow_undecided, is_opened=is_opened, **options)
    if is_opened:
        _open(Path(exports["html"]).resolve())
    return status


# --- what a folder contains, and its report --------------------------------------------------------------------------

Report = Callable[..., int]


def _report_of(run_dirs: tuple[str, ...]) -> Report:
    """Choose the report by what the folder contains; several folders, or a glob, are several runs."""
    from inferometer.conduct.comparing import runs_of  # noqa: PLC0415

    folder = Path(run_dirs[0])
    if len(run_dirs) == 1 and folder.is_dir():
        return next((report for contains, report in _FOLDERS if contains(folder)), _report_run)
    return _report_runs if len([run for name in run_dirs for run in runs_of(name)]) > 1 else _report_run


def _report_run(
    run_dirs: tuple[str, ...],
    exports: dict[str, str],
    slos: tuple[str, ...],
    allow_undecided: bool,
    *,
    is_opened: bool,
    why: str | None,
    tool: str | None,
    histogram: bool,
    explain: bool,
) -> int:
    """Report one run."""
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.conduct.comparing import runs_of  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver, show_as, show_request  # noqa: PLC0415

    id = _id_of(why)
    conduct.parse_slos(slos, "--slo")
    try:
        run, summary = conduct.open_run(str(runs_of(run_dirs[0])[0]), slos or None)
    except conduct.UnsavedError as error:
        deliver(error.run, error.summary, exports, explain, histogram, why=why is not None)
        raise
    if is_opened:
        exports.setdefault("html", str(run.folder / "report.html"))
        check_exports(exports)
    if tool is not None:
        return show_as(run, summary, tool, exports.get("json"))
    if id is not None:
        return show_request(run, id, exports.get("json"))
    return deliver(run, summary, exports, explain, histogram, allow_undecided, why is not None)


def _report_runs(
    run_dirs: tuple[str, ...], exports: dict[str, str], slos: tuple[str, ...], allow_undecided: bool, **_: object
) -> int:
    """Report several runs: the variation between repeats, or a list of runs that differ."""
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.conduct.comparing import open_runs  # noqa: PLC0415
    from inferometer.report.repeats import check_repeat_exports, deliver_repeats  # noqa: PLC0415

    check_repeat_exports(exports, "there are several")
    conduct.parse_slos(slos, "--slo")
    return deliver_repeats(" ".join(run_dirs), open_runs(run_dirs, slos or None), exports, allow_undecided)


def _report_pairs(
    run_dirs: tuple[str, ...], exports: dict[str, str], slos: tuple[str, ...], allow_undecided: bool, **_: object
) -> int:
    """Print the comparison of a folder of `inferometer ab`."""
    from inferometer.conduct.comparing import compare_pairs  # noqa: PLC0415
    from inferometer.report.compare_output import deliver_comparison  # noqa: PLC0415
    from inferometer.report.repeats import check_repeat_exports  # noqa: PLC0415

    check_repeat_exports(exports, "these are pairs of runs")
    if slos:
        raise UserError("--slo is about runs, and these are pairs of runs", "use inferometer compare with --fail-if")
    return deliver_comparison([compare_pairs(Path(run_dirs[0]))], exports, allow_undecided)


def _has_pairs(folder: Path) -> bool:
    from inferometer.conduct.comparing import has_pairs  # noqa: PLC0415

    return has_pairs(folder)


def _has_runs(folder: Path) -> bool:
    from inferometer.conduct.comparing import runs_in  # noqa: PLC0415

    return len(runs_in(folder)) > 1


_FOLDERS: tuple[tuple[Callable[[Path], bool], Report], ...] = (
    (_has_pairs, _report_pairs),
    (_has_runs, _report_runs),
)
"""What a folder may contain besides one run, and the report of it; the first that applies."""


# --- options ---------------------------------------------------------------------------------------------------------


def _set_page(run_dirs: tuple[str, ...], exports: dict[str, str]) -> None:
    """Where --open writes the page of several runs: into their folder, if they are in one."""
    if "html" not in exports and not (len(run_dirs) == 1 and Path(run_dirs[0]).is_dir()):
        raise UserError("--open of several runs needs a path for the page", "add --html PATH")
    from inferometer.report.output import check_exports  # noqa: PLC0415

    exports.setdefault("html", str(Path(run_dirs[0]) / "report.html"))
    check_exports(exports)


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
