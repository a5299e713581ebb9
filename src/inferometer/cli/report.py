"""`inferometer report`: the report of a stored run again, byte for byte, or an export of it.

A complete folder is not changed, except by `--open`, which adds report.html. A run that did not end is completed from what it had recorded.
"""

from pathlib import Path

import click

from inferometer.cli.options import export_options, slo_options
from inferometer.errors import UserError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run_dir", metavar="RUN_DIR")
@slo_options
@export_options
@click.option(
    "--open",
    "is_opened",
    is_flag=True,
    help="Open the HTML report in a browser. Without --html, it is RUN_DIR/report.html.",
)
@click.option("--histogram", is_flag=True, help="Add histograms of the time to first token and the end-to-end time.")
@click.option("--explain", is_flag=True, help="Add the definition of every metric and check.")
def command(
    run_dir: str,
    slos: tuple[str, ...],
    allow_undecided: bool,
    exports: dict[str, str],
    is_opened: bool,
    histogram: bool,
    explain: bool,
) -> int:
    """Print the report of the run in the folder RUN_DIR again, or export it.

    \b
    inferometer report runs/LATEST                  the last run
    inferometer report runs/LATEST --explain        with all definitions
    inferometer report runs/LATEST --open           with charts, in a browser
    inferometer report runs/LATEST --csv out.csv    one row per request
    inferometer report runs/LATEST --json - | jq .throughput
    inferometer report runs/LATEST --slo 'tpot.p95 < 50ms'   by other objectives

    Without --slo, the report is the same, byte for byte, as the one at the end of the run. If the run was killed, the report is made from
    what had been recorded until then.

    Exit status: 0 the run is VALID and meets its objectives, 1 it is INVALID, or an objective is missed or undecided, 2 bad
    input, 3 internal error.
    """
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver  # noqa: PLC0415

    if is_opened and exports.get("html") == "-":
        raise UserError(
            "--open needs a file, but --html writes to standard output", "give --html a path, or leave it out"
        )
    check_exports(exports)
    conduct.parse_slos(slos, "--slo")
    try:
        run, summary = conduct.open_run(run_dir, slos or None)
    except conduct.UnsavedError as error:
        deliver(error.run, error.summary, exports, explain, histogram)
        raise
    if is_opened:
        exports.setdefault("html", str(run.folder / "report.html"))
        check_exports(exports)
    status = deliver(run, summary, exports, explain, histogram, allow_undecided)
    if is_opened:
        _open(Path(exports["html"]).resolve())
    return status


def _open(path: Path) -> None:
    """Show the file in a browser; say where it is if there is no browser."""
    import webbrowser  # noqa: PLC0415

    if not webbrowser.open(path.as_uri()):
        click.echo(f"no browser was found; the report is {path}", err=True)
