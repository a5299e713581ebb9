"""`inferometer report RUN_DIR`: the report of a stored run again, byte for byte, or exported. A whole folder is not changed;
one whose run never ended is completed from what had been recorded.
"""

import click

from inferometer import conduct
from inferometer.report import out


@click.command(short_help="Print the report of a stored run again, or export it.")
@click.argument("run_dir", metavar="RUN_DIR")
@click.option("--json", "json_path", metavar="PATH", help="Write the summary as JSON; - is standard output.")
@click.option("--csv", "csv_path", metavar="PATH", help="Write one line a request as CSV; - is standard output.")
@click.option(
    "--perf-csv",
    "perf_csv_path",
    metavar="PATH",
    help="Write one line a stage as perf_analyzer does; - is standard output.",
)
@click.option("--explain", is_flag=True, help="Say what every metric and check means.")
def command(run_dir: str, json_path: str | None, csv_path: str | None, perf_csv_path: str | None, explain: bool) -> int:
    """Print the report of the run in RUN_DIR, such as runs/LATEST.

    Exit status: 0 the run is VALID, 1 it is INVALID, 2 bad input.
    """
    out.check_paths(json_path, csv_path, perf_csv_path)
    outputs = (json_path, csv_path, explain, perf_csv_path)
    try:
        run, summary = conduct.open_run(run_dir)
    except conduct.UnsavedError as error:
        out.deliver(error.run, error.summary, *outputs)
        raise
    return out.deliver(run, summary, *outputs)
