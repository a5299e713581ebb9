"""`inferometer run`: measure an endpoint."""

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from inferometer.apis import is_url, scheme_of
from inferometer.cli import startup
from inferometer.cli.options import (
    SERVER_NAMES,
    abort_options,
    cost_options,
    export_options,
    image_options,
    percentile_option,
    server_options,
    slo_options,
)
from inferometer.cli.uploads import finish, progress
from inferometer.errors import UserError, named

if TYPE_CHECKING:
    from inferometer.config import Config
    from inferometer.config.grid import Grid

_NAMES = SERVER_NAMES | {
    "keep": "--keep",
    "output": "--store (`output` in the file)",
    "server.model": "--model NAME",
    "observe.prometheus": "--observe",
    "export.metrics_port": "--metrics-port",
    "export.otlp.url": "--otlp",
    "cost.cheapest_at": "--cheapest-at",
    "fleet.type": "--fleet",
}
_IMAGE_NAMES = {"data.path": "--image", "data.scaling": "--scaling", "data.crop": "--crop"}
"""Settings that have a flag of their own, and those that have one with --image."""


def number_or_range(kind: type[int] | type[float]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Make a callback that reads a number or a list of numbers (1,8,64), and leaves a range (START:END[:STEP]) to the config."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None or ":" in value:
            return value
        try:
            numbers = [kind(part) for part in value.split(",")]
        except ValueError:
            raise click.BadParameter(
                f"{value!r} is neither a {'whole ' * (kind is int)}number nor a range (START:END[:STEP]) or a list (1,8,64)."
            ) from None
        return numbers if len(numbers) > 1 else numbers[0]

    return read


def tokens_or_folder(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """Read --output: a number of tokens or, as --store has it, where the run is stored."""
    if value is None or "/" in value:
        return value
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is not a whole number of tokens; --store says where the run is stored.")
    return int(value)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="URL|FILE")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set any key of the config, over the file: --set load.rate=50. Can be repeated. `inferometer docs config` lists the keys.",
)
@click.option("--model", help="The model to use. Default: the first that the server lists.")
@server_options
@click.option(
    "--rate",
    callback=number_or_range(float),
    metavar="LEVELS",
    help="Open loop: send N requests per second on average, at random (Poisson) times, no matter how fast the server "
    "responds. 5,10,20 or 100:500:100 or 1:64:x2 measures a stage for each level; 1:64:adaptive finds the knee.",
)
@click.option(
    "--concurrency",
    callback=number_or_range(int),
    metavar="LEVELS",
    help="Closed loop: keep N requests in flight; each response makes room for the next request. 1,8,64 or 1:8:2 or "
    "1:64:x2 measures a stage for each level; 1:64:adaptive finds the knee. Default: 16.",
)
@click.option("--duration", metavar="TIME", help="Measure for this long, such as 30s or 5m; 45 is 45s. Default: 30s.")
@click.option("--requests", type=int, metavar="N", help="Measure with this many requests instead.")
@click.option("--input", "input_tokens", type=int, metavar="N", help="The number of tokens in each prompt.")
@click.option(
    "--output",
    callback=tokens_or_folder,
    metavar="N",
    help="The number of tokens to generate per request.",
)
@click.option(
    "--store", metavar="FOLDER|URL", help="Where the run is stored: ./parts, s3://BUCKET/PREFIX. Default: runs."
)
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    metavar="TEXT",
    help="Send this prompt instead of synthetic ones. Can be repeated: the prompts are sent in turn.",
)
@click.option(
    "--image",
    metavar="FILE|FOLDER",
    help="A tensor server: send this image, or those in the folder in turn, as `inferometer infer --image` does.",
)
@image_options
@slo_options
@cost_options
@abort_options
@export_options
@percentile_option
@click.option(
    "--observe",
    "observed",
    multiple=True,
    metavar="URL",
    help="Scrape this Prometheus endpoint during the run, instead of the server's own /metrics. Can be repeated, for replicas.",
)
@click.option(
    "--metrics-port",
    type=int,
    metavar="N",
    help="Offer live figures to Prometheus at http://127.0.0.1:N/metrics during the run.",
)
@click.option("--otlp", metavar="URL", help="Send metrics, and a span per request, to this OpenTelemetry receiver.")
@click.option(
    "--fleet",
    metavar="local|ray[://HOST:PORT]",
    help="Where the client's processes run: on this machine (default), or on the nodes of a Ray cluster: the one at HOST:PORT or in "
    "RAY_ADDRESS, or else one that is started for the run. `fleet` in the config has more.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Measure N times, with a fresh seed each, and show how much the figures vary between runs.",
)
@click.option(
    "--keep",
    "kept",
    multiple=True,
    type=click.Choice(["text"]),
    help="Store more in the run's folder. text: the bodies of requests and the generated texts, in bodies.parquet.",
)
@click.option(
    "--shard",
    metavar="K/N",
    help="Measure only part K of N, counted from 0, beside other clients that measure the other parts. auto/N: the number is "
    "that of the Pod in an Indexed Job. Needs --start-at; `inferometer merge` makes one run of the parts.",
)
@click.option(
    "--start-at",
    metavar="TIME",
    help="Start at this instant of the wall clock: 2026-11-17T12:00:00Z, or +30s for 30 s from now.",
)
@click.option("--histogram", is_flag=True, help="Add histograms of the time to first token and the end-to-end time.")
@click.option(
    "--why", is_flag=True, help="Add why the slow requests were slow: which cause explains how much of p99 - p50."
)
@click.option("--explain", is_flag=True, help="Add the definition of every metric and check to the report.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress during the run.")
def command(
    source: str,
    overrides: tuple[str, ...],
    model: str | None,
    server: dict[str, Any],
    rate: float | list[float] | str | None,
    concurrency: int | list[int] | str | None,
    duration: str | None,
    requests: int | None,
    input_tokens: int | None,
    output: int | str | None,
    store: str | None,
    prompts: tuple[str, ...],
    image: str | None,
    scaling: str | None,
    crop: str | None,
    slos: tuple[str, ...],
    strict: bool,
    cost: dict[str, Any],
    abort_on: tuple[str, ...],
    exports: dict[str, str],
    percentiles: list[float],
    observed: tuple[str, ...],
    metrics_port: int | None,
    otlp: str | None,
    fleet: str | None,
    repeat: int,
    kept: tuple[str, ...],
    shard: str | None,
    start_at: str | None,
    histogram: bool,
    why: bool,
    explain: bool,
    quiet: bool,
) -> int:
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

    part, start_ns = part_and_start(shard, start_at, os.environ, time.time_ns())
    has_url = is_url(source)
    tree: dict[str, Any] = {"server": {"url": source}} if has_url else read_tree(source, or_url=True)
    is_stable = any(setting.startswith("load.stable=") for setting in overrides)
    set_load(tree, rate, concurrency, duration, requests, is_stable)
    if prompts and image is not None:
        raise UserError(
            "--prompt and --image exclude each other: a request has one or the other", "leave out one of them"
        )
    set_data(tree, input_tokens, output if isinstance(output, int) else None, prompts)
    _set_images(tree, image, scaling, crop)
    _set_observed(tree, observed, metrics_port, otlp)
    set_fleet(tree, fleet)
    _set_others(tree, model, server, cost, percentiles, kept, store or output)
    origin = "command line" if has_url else source
    check_exports(exports)
    if slos:
        conduct.parse_slos(slos, "--slo")
        tree["slo"] = list(slos)
    set_abort(tree, abort_on)
    level = concurrency if rate is None else rate
    set_by_option = {
        "load.rate": level,
        "load.concurrency": level,
        "load.duration": duration,
        "load.requests": requests,
        "data.input": input_tokens,
        "data.output": output if isinstance(output, int) else None,
        "server.model": model,
    }
    override_sweep(tree, [key for key, value in set_by_option.items() if value is not None])
    override_sweep(tree, [setting.partition("=")[0].strip() for setting in overrides])
    single = {"--histogram": histogram, "--why": why, "--explain": explain, "--percentiles": percentiles}
    try:
        with named(_NAMES | (_IMAGE_NAMES if image is not None else {}), origin):
            grid = grid_from_mapping(tree, overrides, origin, DISCOVERY)
            config = grid.cells[0].config
            exports = with_file_exports(exports, config.report.exports)
            if grid.is_sweep or repeat > 1:
                _check_one_run({"--shard": shard, "--start-at": start_at})
            if grid.is_sweep:
                _check_single(single, "this is a sweep of several")
                return _sweep(grid, repeat, exports, strict, quiet)
            if repeat > 1:
                costs = {"--price-per-hour, --gpus or --cheapest-at": cost}
                _check_single(single | costs, "--repeat makes several")
                return _repeat(config, repeat, exports, strict, quiet)
            run, summary = conduct.measure(config, None if quiet else LiveView(), part=part, start_ns=start_ns)
    except conduct.UnsavedError as error:
        deliver(RUN, RunReport(error.run, error.summary, strict, explain, histogram, why), exports)
        raise
    status = deliver(RUN, RunReport(run, summary, strict, explain, histogram, why), exports)
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


def set_load(
    tree: dict[str, Any],
    rate: float | list[float] | str | None,
    concurrency: int | list[int] | str | None,
    duration: str | None,
    requests: int | None,
    is_stable: bool,
) -> None:
    """Put the options for the load over the file's; `is_stable`: --set ends the load when it is stable."""
    if rate is not None and concurrency is not None:
        raise UserError(
            "--rate (open loop) and --concurrency (closed loop) exclude each other",
            "give one of them; --set load.max_concurrency=N limits an open loop",
        )
    ends = {name: value for name, value in (("duration", duration), ("requests", requests)) if value is not None}
    if rate is not None:
        tree["load"] = {"type": "poisson", "rate": rate} | _end_of_load(tree, ends, is_stable)
    elif concurrency is not None:
        tree["load"] = {"type": "closed", "concurrency": concurrency} | _end_of_load(tree, ends, is_stable)
    elif ends:
        load = section(tree, "load")
        if "stages" in load:
            raise UserError(
                "--duration and --requests: the file has several stages",
                "use --set load.stages.0.duration=... for one of them",
            )
        for name in ("duration", "requests"):
            load.pop(name, None)
        load.update(ends)


def section(tree: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the file's section to put an option into. If it is not a section, the config's own check reports that."""
    found = tree.get(name)
    if found is None:
        found = tree[name] = {}
    return found if isinstance(found, dict) else {}


def _end_of_load(tree: dict[str, Any], given: dict[str, Any], is_stable: bool) -> dict[str, Any]:
    """What ends the load: the options, else the file, else 30 s, unless it ends when it is stable."""
    load = section(tree, "load")
    settling = {name: load[name] for name in ("stable", "window") if name in load}
    ends = given or {name: load[name] for name in ("duration", "requests") if name in load}
    if not ends and not is_stable and "stable" not in settling:
        ends = {"duration": "30s"}
    return ends | settling


def set_data(
    tree: dict[str, Any], input_tokens: int | None, output_tokens: int | None, prompts: tuple[str, ...]
) -> None:
    """Put the options for prompts and responses over the file's."""
    if prompts:
        if input_tokens is not None:
            raise UserError("--input and --prompt: a given prompt already has its length", "leave out one of them")
        tree["data"] = {"type": "prompts", "prompts": list(prompts)}
    server = tree.get("server")
    url = server.get("url") if isinstance(server, dict) else None
    if (input_tokens or output_tokens) and isinstance(url, str) and scheme_of(url) == "grpc":
        raise UserError(
            "--input and --output are tokens of prompts, but over gRPC tensors or messages are sent",
            "use --set data.shape=... or --set data.batch=...",
        )
    for name, value in (("input", input_tokens), ("output", output_tokens)):
        if value is not None:
            section(tree, "data")[name] = value


def set_server(tree: dict[str, Any], given: dict[str, Any]) -> None:
    """Put the options of `server_options` over the file's."""
    for key, value in given.items():
        server = section(tree, "server")
        section(server, key).update(value) if isinstance(value, dict) else server.update({key: value})


def set_abort(tree: dict[str, Any], limits: tuple[str, ...]) -> None:
    """Put the limits that end a run early over the file's."""
    if limits:
        from inferometer import conduct  # noqa: PLC0415

        conduct.parse_limits(limits, "--abort-on")
        section(tree, "abort")["on"] = list(limits)


def set_fleet(tree: dict[str, Any], fleet: str | None) -> None:
    """Put the option for where the processes run over the file's."""
    if fleet is None:
        return
    kind, separator, address = fleet.partition("://")
    if kind not in ("local", "ray") or (separator and (kind == "local" or not address)):
        raise UserError(f"--fleet {fleet}: is neither a fleet nor its address", "write local, ray or ray://HOST:PORT")
    if kind == "local":
        tree["fleet"] = {"type": kind}
    else:
        section(tree, "fleet").update({"type": kind} | ({"address": address} if address else {}))


def _set_observed(tree: dict[str, Any], observed: tuple[str, ...], metrics_port: int | None, otlp: str | None) -> None:
    """Put the options for what is observed and exported over the file's."""
    if observed:
        section(tree, "observe")["prometheus"] = list(observed)
    if metrics_port is not None:
        section(tree, "export")["metrics_port"] = metrics_port
    if otlp is not None:
        section(section(tree, "export"), "otlp")["url"] = otlp


def _set_others(
    tree: dict[str, Any],
    model: str | None,
    server: dict[str, Any],
    cost: dict[str, Any],
    percentiles: list[float],
    kept: tuple[str, ...],
    output: int | str | None,
) -> None:
    """Put options that stand for one key each over the file's. An `output` that is a number is about the data."""
    if model is not None:
        section(tree, "server")["model"] = model
    set_server(tree, server)
    if cost:
        section(tree, "cost").update(cost)
    if percentiles:
        section(tree, "report")["percentiles"] = percentiles
    if kept:
        tree["keep"] = list(kept)
    if isinstance(output, str):
        tree["output"] = output


def _set_images(tree: dict[str, Any], path: str | None, scaling: str | None, crop: str | None) -> None:
    """Put the options for images over the file's. Images need an API of tensors, so it is set if the file does not."""
    given = {name: value for name, value in (("path", path), ("scaling", scaling), ("crop", crop)) if value is not None}
    if not given:
        return
    data = section(tree, "data")
    if path is None and data.get("type") != "images":
        raise UserError(f"--{next(iter(given))} needs --image", "give --image FILE, or leave it out")
    if data.get("type", "images") != "images" or "prompts" in data:
        data = tree["data"] = {}
    data.update(given, type="images")
    server = section(tree, "server")
    if server.get("api", "auto") == "auto":
        server["api"] = "kserve"
