"""`inferometer merge`: one run of the parts that several clients measured."""

import click

from inferometer.cli.options import export_options, strict_option
from inferometer.cli.uploads import finish
from inferometer.errors import named


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--store",
    "output",
    metavar="FOLDER|URL",
    default="runs",
    show_default=True,
    help="Where the run is stored, in a folder of its own: a folder, or s3://BUCKET/PREFIX, gs://BUCKET/PREFIX.",
)
@export_options
@strict_option
@click.option("--explain", is_flag=True, help="Add the definition of every metric and check to the report.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress of uploads.")
def command(
    names: tuple[str, ...], output: str, exports: dict[str, str], strict: bool, explain: bool, quiet: bool
) -> int:
    """Make one run of the parts in the folders RUN, which were measured with `inferometer run --shard`, and give its verdict.

    \b
    inferometer merge parts                        all parts in a folder
    inferometer merge 'runs/20261117-*-part*'      a quoted glob
    inferometer merge a/runs/LATEST b/runs/LATEST  the parts one by one
    inferometer merge s3://bucket/parts --store runs

    The parts stay as they are. A part that is missing is named and makes the run INVALID. Parts of different runs (another config,
    seed, start or number of parts) and a part that is there twice are errors. In a folder of runs, those that are not parts are
    left out.

    Latencies are measured by the clock of one part each. Figures over time, such as rates, put the clocks of several machines side by
    side, which were not compared: keep them synchronized (NTP or PTP).

    Exit status: 0 the run is VALID and meets its objectives, 1 it is INVALID, or an objective is missed, 2 bad
    input, 3 internal error.
    """
    from inferometer.conduct.merging import merge  # noqa: PLC0415
    from inferometer.report.output import RUN, RunReport, check_exports, deliver  # noqa: PLC0415

    check_exports(exports)
    with named({"output": "--store", "storage.endpoint": "the endpoint", "storage.local": "--store"}):
        run, summary = merge(names, output)
    status = deliver(RUN, RunReport(run, summary, strict, explain), exports)
    return finish(run.folder, status, quiet)
