"""`inferometer perf-analyzer`: run a command line of perf_analyzer."""

import click

from inferometer.errors import named


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True}, options_metavar=""
)
@click.argument("options", metavar="OPTIONS...", nargs=-1, type=click.UNPROCESSED)
def command(options: tuple[str, ...]) -> int:
    """Measure a KServe v2 server such as Triton with the options of perf_analyzer, and print our report.

    \b
    inferometer perf-analyzer -m resnet
    inferometer perf-analyzer -m resnet -i grpc -u host:8001 --shape IN:3,224,224
    inferometer perf-analyzer -m resnet --concurrency-range 1:8:2 -f out.csv
    inferometer perf-analyzer -m resnet --request-rate-range 100:500:100 -p 2000

    All options are those of perf_analyzer, with the same defaults: one request in flight, windows of 5 s, until three of them
    agree within 10 %. An option that does nothing here is noted; one whose meaning cannot be kept is an error.
    `inferometer docs from-perf-analyzer` lists them, and `inferometer convert -- perf_analyzer ...` writes the same as a file for
    `inferometer run`, which has more options.

    Exit status: 0 the run is VALID, 1 it is INVALID, 2 bad input, 3 internal error, 130 interrupted before it started.
    """
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.compat.perf_analyzer import NAMES, translate  # noqa: PLC0415
    from inferometer.config import from_mapping  # noqa: PLC0415
    from inferometer.report.live import LiveView  # noqa: PLC0415
    from inferometer.report.output import RUN, RunReport, deliver, with_file_exports  # noqa: PLC0415

    tree, given = translate(options, with_secrets=True)
    for note in given.notes:
        click.echo(f"inferometer: {note}", err=True)
    with named(NAMES):
        config = from_mapping(tree, source="perf_analyzer")
        exports = with_file_exports({}, config.report.exports)
        try:
            run, summary = conduct.measure(config, LiveView())
        except conduct.UnsavedError as error:
            deliver(RUN, RunReport(error.run, error.summary), exports)
            raise
    return deliver(RUN, RunReport(run, summary), exports)
