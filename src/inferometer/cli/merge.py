"""`inferometer merge`: one run of the parts that several clients measured."""

import click

from inferometer.cli.options import Command, export_options, options_of
from inferometer.cli.uploads import finish
from inferometer.errors import named


@click.command(cls=Command)
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@options_of("merge")
@export_options
def command(
    names: tuple[str, ...], output: str | None, exports: dict[str, str], strict: bool, explain: bool, quiet: bool
) -> int:
    """Make one run of the parts in the folders RUN, which were measured with `inferometer run --shard`, and give its verdict.

    \b
    inferometer merge parts                        all parts in a folder
    inferometer merge 'runs/20261117-*-part*'      a quoted glob
    inferometer merge a/runs/LATEST b/runs/LATEST  the parts one by one
    inferometer merge s3://bucket/parts --output runs

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
    with named({"output": "--output", "storage.endpoint": "the endpoint", "storage.local": "--output"}):
        run, summary = merge(names, output or "runs")
    status = deliver(RUN, RunReport(run, summary, strict, explain), exports)
    return finish(run.folder, status, quiet)
