"""`inferometer run`: measure an endpoint."""

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from inferometer.apis import is_url
from inferometer.cli import startup
from inferometer.cli.options import Command, export_options, names_of, options_of, put_options
from inferometer.cli.uploads import finish, progress
from inferometer.errors import UserError, named

if TYPE_CHECKING:
    from inferometer.config import Config
    from inferometer.config.grid import Grid

_IMAGE_KEYS = ("data.path", "data.scaling", "data.crop")
"""Settings that messages call by their flags only if there is an --image."""


@click.command(cls=Command)
@click.argument("source", metavar="URL|FILE")
@options_of("run")
@export_options
def command(source: str, exports: dict[str, str], strict: bool, repeat: int, quiet: bool, **given: Any) -> int:
    """Measure the endpoint at URL, or what FILE (YAML) describes, and give a verdict.

    \b
    An LLM server with OpenAI's API: 16 requests in flight for 30 s
      inferometer run http://127.0.0.1:8000
    20 requests per second for a minute, however fast it responds
      inferometer run http://127.0.0.1:8000 --rate 20 --duration 1m
    How it scales: 1, 2, 3 ... 8 in flight, 10 s each
      inferometer run http://127.0.0.1:8000 --concurrency 1:8 --duration 10s
    Where latency begins to grow faster than throughput
      inferometer run http://127.0.0.1:8000 --rate 1:64:adaptive --duration 20s
    A grid: a run for each combination of the values, in one report
      inferometer run http://127.0.0.1:8000 --set data.input='[256, 8192]'
    A tensor server (Triton, KServe v2), over gRPC or HTTP
      inferometer run grpc://127.0.0.1:8001 --model resnet
      inferometer run http://127.0.0.1:8000 --set server.api=kserve
      inferometer run grpc://127.0.0.1:8001 --model resnet --image photos/
    Whether it is fast enough: exit status 1 if not
      inferometer run http://127.0.0.1:8000 --rate 20 --slo 'ttft.p99 < 500ms'
    A file, with one key changed, and the figures as JSON
      inferometer run bench.yaml --set load.rate=50 --json out.json
    The first of three parts, on one of three machines
      inferometer run bench.yaml --shard 0/3 --start-at 2026-11-17T12:00:00Z

    Each run is stored in a folder of its own under runs/; `inferometer report runs/LATEST` prints the report again. The first
    Ctrl-C stops sending, waits for the responses in flight and reports what was measured; the second does not wait.

    A list of values at any key (or in `sweep`) makes a run for each combination, all in one folder; `inferometer docs sweep` has
    the rules, also of the exit status.

    Exit status: 0 the run is VALID and meets its objectives, 1 it is INVALID, or an objective is missed, 2 bad
    input, 3 internal error, 130 interrupted before it started. With --shard, 0 says that the part is measured and stored.
    """
    startup.prepare()
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.conduct.parts import part_and_start  # noqa: PLC0415
    from inferometer.config import read_tree  # noqa: PLC0415
    from inferometer.config.grid import grid_from_mapping, override_sweep  # noqa: PLC0415
    from inferometer.probe.scheme import DISCOVERY  # noqa: PLC0415
    from inferometer.report.closing import conclusion  # noqa: PLC0415
    from inferometer.report.live import LiveView  # noqa: PLC0415
    from inferometer.report.output import RUN, RunReport, check_exports, deliver, with_file_exports  # noqa: PLC0415

    part, start_ns = part_and_start(given["shard"], given["start_at"], os.environ, time.time_ns())
    has_url = is_url(source)
    tree: dict[str, Any] = {"server": {"url": source}} if has_url else read_tree(source, or_url=True)
    check_exports(exports)
    names = {key: name for key, name in names_of("run").items() if given["image"] or key not in _IMAGE_KEYS}
    shown = {name: given[name] for name in ("histogram", "why", "explain")}
    single = {f"--{name}": value for name, value in (shown | {"percentiles": given["percentiles"]}).items()}
    try:
        with named(names, origin := "command line" if has_url else source):
            override_sweep(tree, put_options(tree, "run", given))
            override_sweep(tree, [setting.partition("=")[0].strip() for setting in given["set"]])
            grid = grid_from_mapping(tree, given["set"], origin, DISCOVERY)
            config = grid.cells[0].config
            exports = with_file_exports(exports, config.report.exports)
            if grid.is_sweep or repeat > 1:
                _check_one_run({"--shard": given["shard"], "--start-at": given["start_at"]})
            if grid.is_sweep:
                _check_single(single, "this is a sweep of several")
                return _sweep(grid, repeat, exports, strict, quiet)
            if repeat > 1:
                cost = given["price_per_hour"] or given["gpus"] or given["cheapest_at"]
                _check_single(single | {"--price-per-hour, --gpus or --cheapest-at": cost}, "--repeat makes several")
                return _repeat(config, repeat, exports, strict, quiet)
            run, summary = conduct.measure(config, None if quiet else LiveView(), part=part, start_ns=start_ns)
    except conduct.UnsavedError as error:
        deliver(RUN, RunReport(error.run, error.summary, strict, **shown), exports)
        raise
    status = deliver(RUN, RunReport(run, summary, strict, **shown), exports)
    # the verdict is that of all parts together
    return (
        finish(run.folder, status, quiet, conclusion(summary, strict)) if part is None else finish(run.folder, 0, quiet)
    )


def _check_one_run(options: Mapping[str, object]) -> None:
    """Raise UserError for options that are about one run."""
    for option, value in options.items():
        if value is not None:
            raise UserError(
                f"{option}: it is about a single run, and this makes several", "leave it out, or make one run at a time"
            )


def _check_single(options: Mapping[str, object], reason: str) -> None:
    """Raise UserError for options that add to the report of a single run."""
    for option, value in options.items():
        if value:
            raise UserError(
                f"{option}: the report of a single run has that, and {reason}",
                "leave it out, and give it to inferometer report RUN_DIR for one of the runs",
            )


def _repeat(config: "Config", count: int, exports: dict[str, str], strict: bool, quiet: bool) -> int:
    """Measure several times, and report the variation between the runs."""
    from inferometer.conduct.pairs import repeat  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver  # noqa: PLC0415
    from inferometer.report.repeats import RUNS, RunsReport  # noqa: PLC0415

    check_exports(exports, RUNS)
    experiment = repeat(config, count, progress(quiet))
    report = RunsReport(str(experiment.folder), experiment.runs, strict)
    return finish(experiment.folder, deliver(RUNS, report, exports), quiet)


def _sweep(grid: "Grid", repeat: int, exports: dict[str, str], strict: bool, quiet: bool) -> int:
    """Measure a grid of settings or an adaptive range, and report all of it together."""
    from inferometer.conduct.sweep import measure_sweep, projection, summarised  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver  # noqa: PLC0415
    from inferometer.report.sweep import SWEEP, describe_plan  # noqa: PLC0415

    if repeat > 1:
        raise UserError(
            "--repeat repeats one run, and this is a sweep of several",
            f"leave out --repeat, or sweep over seeds: --set seed='[{', '.join(map(str, range(min(repeat, 5))))}]'",
        )
    check_exports(exports, SWEEP)
    if not quiet:
        click.echo(describe_plan([cell.settings for cell in grid.cells], *projection(grid)), err=True)
    experiment = measure_sweep(grid, progress(quiet))
    return finish(experiment.folder, deliver(SWEEP, summarised(experiment, strict), exports), quiet)
