"""`inferometer capacity`: the highest load at which a server holds its objectives."""

from typing import Any

import click

from inferometer.cli import startup
from inferometer.cli.options import SERVER_NAMES, server_options
from inferometer.cli.uploads import finish
from inferometer.errors import UserError, named

_NAMES = SERVER_NAMES | {
    "slo": "--slo",
    "budget": "--budget",
    "think": "--think",
    "start": "--start",
    "precision": "--precision",
    "at_least": "--at-least",
    "server.model": "--model NAME",
    "output": "--set output=DIR (`output` in the file)",
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="[URL|FILE]", required=False)
@click.option(
    "--slo",
    "slos",
    multiple=True,
    metavar="OBJECTIVE",
    help="What must hold: a preset (chat, code, summarize, interactive, inference) or an expression such as 'ttft.p99 < 500ms'. "
    "Can be repeated. Default: that of the file, else chat, and inference for tensor servers. `inferometer docs slo` lists them.",
)
@click.option(
    "--by",
    type=click.Choice(["rate", "concurrency", "users"]),
    default="rate",
    show_default=True,
    help="What is raised: requests per second, requests in flight, or users who think between requests.",
)
@click.option(
    "--budget",
    metavar="TIME",
    help="How long the search may take. Default: 2m, or longer for a server whose responses take that long.",
)
@click.option(
    "--percentile",
    type=click.Choice(["p50", "p90", "p95", "p99"]),
    help="The percentile at which presets are judged. Default: p90, because p99 takes ten times as many requests.",
)
@click.option(
    "--think",
    default="20s",
    show_default=True,
    metavar="TIME",
    help="How long a person thinks between a response and the next message.",
)
@click.option(
    "--start",
    type=float,
    metavar="N",
    help="The first level after the closed loops. Default: one that will probably hold.",
)
@click.option(
    "--precision", default="5%", show_default=True, metavar="SHARE", help="End when the interval is as narrow as this."
)
@click.option("--model", help="The model to use. Default: the first that the server lists.")
@server_options
@click.option("--input", "input_tokens", type=int, metavar="N", help="The number of tokens in each prompt.")
@click.option("--output", "output_tokens", type=int, metavar="N", help="The number of tokens to generate per request.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set any key of the config except `load`, over the file: --set data.input=1024. Can be repeated.",
)
@click.option(
    "--at-least",
    type=float,
    metavar="N",
    help="The level that must hold, such as 4 requests per second: exit with status 1 unless it holds. It is the first after the closed loops. "
    "Default: any level.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Only what was shown with 95 % confidence counts for the exit status. By default, what likely holds counts, too.",
)
@click.option("--json", "json_path", metavar="PATH", help="Write the answer as JSON. Use - for standard output.")
@click.option(
    "--html",
    "html_path",
    metavar="PATH",
    help="Write a report with charts as one HTML file. Use - for standard output.",
)
@click.option(
    "--markdown",
    "markdown_path",
    metavar="PATH",
    help="Write the answer and the probes as Markdown, for a pull request. Use - for standard output.",
)
@click.option(
    "--junit",
    "junit_path",
    metavar="PATH",
    help="Write JUnit XML: a test case for the capacity, and one for each objective. Use - for standard output.",
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress during the search.")
def command(
    source: str | None,
    slos: tuple[str, ...],
    by: str,
    budget: str | None,
    percentile: str | None,
    think: str,
    start: float | None,
    precision: str,
    model: str | None,
    server: dict[str, Any],
    input_tokens: int | None,
    output_tokens: int | None,
    overrides: tuple[str, ...],
    at_least: float | None,
    strict: bool,
    json_path: str | None,
    html_path: str | None,
    markdown_path: str | None,
    junit_path: str | None,
    quiet: bool,
) -> int:
    """Find the highest load at which the server at URL, or the one that FILE (YAML) describes, holds its objectives.

    \b
    Whatever runs on this machine, as a chat service, in two minutes
      inferometer capacity
    Your own objectives
      inferometer capacity http://127.0.0.1:8000 --slo 'ttft.p90 < 500ms'
    How many people may use it at once, each of whom thinks for 30 s
      inferometer capacity http://127.0.0.1:8000 --by users --think 30s
    A tensor server
      inferometer capacity grpc://127.0.0.1:8001 --model resnet --slo inference
    p99, with the time that it takes
      inferometer capacity http://127.0.0.1:8000 --percentile p99 --budget 20m
    A report with charts
      inferometer capacity http://127.0.0.1:8000 --html capacity.html
    A gate in CI: exit status 1 unless 4 requests/s hold
      inferometer capacity http://127.0.0.1:8000 --at-least 4 --junit out.xml

    A few short closed loops come first: they show the curve of throughput, and where the objectives break. Probes with the load
    that --by names follow there. The answer says apart what was shown to hold with 95 % confidence, what is likely, and what is only
    an estimate from the curve. When the budget is spent, it is what the probes have shown until then; Ctrl-C gives that at any time.
    `inferometer docs capacity` explains it.

    `inferometer report FOLDER` shows the answer again, where FOLDER is the folder of the probes.

    Exit status: 0 a level holds, shown or likely (with --at-least: that level or a higher one; with --strict: only if shown), 1 none
    does, 2 bad input, 3 internal error, 130 interrupted before the first probe was complete.
    """
    import msgspec  # noqa: PLC0415

    startup.prepare()
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.apis import is_url  # noqa: PLC0415
    from inferometer.cli.run import section, set_data, set_server  # noqa: PLC0415
    from inferometer.conduct.capacity import Options, find, with_objectives  # noqa: PLC0415
    from inferometer.config import from_mapping, read_tree  # noqa: PLC0415
    from inferometer.probe.local import find_server  # noqa: PLC0415
    from inferometer.probe.scheme import DISCOVERY  # noqa: PLC0415
    from inferometer.report import capacity_view  # noqa: PLC0415
    from inferometer.report.capacity_export import SEARCH, CapacityReport, save  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver, with_file_exports  # noqa: PLC0415

    with named(_NAMES):
        options = Options(
            by=by,  # type: ignore[arg-type]
            budget=None if budget is None else _seconds(budget, "--budget"),
            percentile=percentile or "p90",
            think=_seconds(think, "--think"),
            start=start,
            at_least=at_least,
            precision=_share(precision),
        )
    given = {"json": json_path, "html": html_path, "markdown": markdown_path, "junit": junit_path}
    paths = {name: path for name, path in given.items() if path is not None}
    check_exports(paths)
    conduct.parse_slos(slos, "--slo", options.percentile)
    for setting in overrides:
        if setting.partition("=")[0].partition(".")[0].strip() == "load":
            raise UserError(
                "--set load...: the search sets the load itself", "leave it out; see --by, --start and --budget"
            )
    if source is None:
        source = find_server()
        click.echo(f"found a server at {source}", err=True)
    has_url = is_url(source)
    tree: dict[str, Any] = {"server": {"url": source}} if has_url else read_tree(source, or_url=True)
    tree.pop("load", None)
    set_data(tree, input_tokens, output_tokens, ())
    set_server(tree, server)
    if model is not None:
        section(tree, "server")["model"] = model
    if slos:
        tree["slo"] = list(slos)
    origin = "command line" if has_url else source
    with named(_NAMES, origin):
        config = from_mapping(tree, overrides, origin, DISCOVERY)
        config = with_objectives(config)
        paths = with_file_exports(paths, config.report.exports, SEARCH)
        found, manifest = find(config, options, capacity_view.SearchView(options.by, quiet))
    report = CapacityReport(msgspec.structs.replace(found, strict=strict), manifest)
    save(report)
    return finish(found.folder, deliver(SEARCH, report, paths), quiet)


def _seconds(given: str, option: str) -> float:
    from inferometer.units import parse_seconds  # noqa: PLC0415

    try:
        return parse_seconds(given)
    except ValueError as error:
        raise UserError(f"{option}: {error}", "write it as 2m or 90s") from None


def _share(given: str) -> float:
    number = given.strip().removesuffix("%")
    try:
        return float(number) / (100 if given.strip().endswith("%") else 1)
    except ValueError:
        raise UserError(f"--precision: expected a share such as 5%, got {given!r}", "write it as 5%") from None
