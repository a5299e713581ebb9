"""`inferometer triton`: a drop-in for Triton's simple performance client."""

import sys

import click

from inferometer.cli.options import Command, check_server_settings, options_of
from inferometer.errors import named
from inferometer.printable import printable

_NAMES = {
    "output": "--output FOLDER",
    "server.url": "-u",
    "server.model": "-m",
    "server.version": "-x",
    "server.api": "`inferometer run` with server.api",
}
"""What this command calls its settings."""


@click.command(cls=Command)
@click.option("-v", "--verbose", is_flag=True, help="Print the full report to standard error.")
@click.option("-m", "--model-name", required=True, help="The name of the model.")
@click.option("-x", "--model-version", default="", help="The version of the model. Default: the server chooses.")
@click.option("-b", "--batch-size", type=click.IntRange(min=1), default=1, show_default=True, help="The batch size.")
@click.option(
    "-s",
    "--shape",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The size of the variable dimension: the tensor is [BATCH, SHAPE], or [SHAPE] if the model takes no batches.",
)
@click.option(
    "-u",
    "--url",
    help="The server: HOST:PORT, or a URL. Default: 127.0.0.1:8000 for http, 127.0.0.1:8001 for grpc.",
)
@click.option(
    "-i",
    "--protocol",
    type=click.Choice(["http", "grpc"], case_sensitive=False),
    help="The protocol. Default: that of the URL's scheme, else the one that the port speaks.",
)
@click.option(
    "-c",
    "--iteration_count",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="The number of requests to measure.",
)
@click.option(
    "-w",
    "--warmup_count",
    type=click.IntRange(min=0),
    default=500,
    show_default=True,
    help="The number of requests to send before, which do not count.",
)
@click.option("--csv", "csv_path", metavar="FILE", help="Write the figures as CSV, latencies in microseconds.")
@options_of("triton")
def command(
    verbose: bool,
    model_name: str,
    model_version: str,
    batch_size: int,
    shape: int,
    url: str | None,
    protocol: str | None,
    iteration_count: int,
    warmup_count: int,
    csv_path: str | None,
    output: str | None,
    set: list[str],
) -> int:
    """Measure a model of a KServe v2 server, such as Triton, with one request at a time.

    \b
    inferometer triton -m identity -s 1000
    inferometer triton -m identity -i grpc -u 127.0.0.1:8001 -b 8 --csv out.csv

    This command has the flags and the output of Triton's simple performance client. Requests are tensors of zeros;
    `infer/sec` counts requests, so a batch counts once, and percentiles are interpolated, as that client's are (other commands
    print values that were measured). The model must have one input and one output, each with one variable
    dimension. The records of the run are deleted unless there is an --output.

    Exit status: 0 the run is VALID, 1 it is INVALID or the server stopped (standard error says why), 2 bad input, 3 internal error.
    """
    from inferometer import conduct, triton_client  # noqa: PLC0415
    from inferometer.report import console  # noqa: PLC0415
    from inferometer.report.output import check_paths, write_file  # noqa: PLC0415
    from inferometer.report.width import columns  # noqa: PLC0415

    check_server_settings(set, "url", "model", "version", "api", "stream")
    check_paths({"--csv": csv_path})
    options = triton_client.TritonOptions(
        model=model_name,
        version=model_version,
        batch=batch_size,
        size=shape,
        url=url,
        protocol=protocol,
        iterations=iteration_count,
        warmups=warmup_count,
        overrides=tuple(set),
    )
    with triton_client.folder_for_records(output) as folder:
        unsaved = None
        try:
            with named(_NAMES):
                run, summary = triton_client.measure(options, folder)
        except conduct.UnsavedError as error:
            run, summary, unsaved = error.run, error.summary, error
        if verbose:
            shown = run if output is not None else triton_client.without_folder(run)
            click.echo(console.render(shown, summary, width=columns(sys.stderr)), nl=False, err=True)
    if why := triton_client.gave_up(run):
        click.echo(f"inferometer: {printable(why)}\n  next: check whether the server is still up", err=True)
        return 1
    click.echo(triton_client.text(run), nl=False)
    if csv_path is not None:
        write_file(csv_path, lambda file: file.write(triton_client.csv(run).encode()))
    for check in summary.checks:
        if check.name == "concurrency" and check.status == "warn" and not verbose:
            # why throughput x latency is less than one request
            click.echo(printable(f"inferometer: {check.message}"), err=True)
    if summary.verdict == "INVALID" and not verbose:
        failed = [f"  {check.name}: {check.message}" for check in summary.checks if check.status == "fail"]
        click.echo(printable("\n".join(["inferometer: INVALID", *failed])), err=True)
    if unsaved is not None and output is not None:
        raise unsaved
    return 0 if summary.verdict == "VALID" else 1
