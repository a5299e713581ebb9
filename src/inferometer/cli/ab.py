"""`inferometer ab`: measure two servers in interleaved pairs of runs, and compare them."""

from typing import Any

import click

from inferometer.cli import startup
from inferometer.cli.options import SERVER_NAMES, abort_options, comparison_options, server_options
from inferometer.cli.run import number_or_range, section, set_abort, set_data, set_load, set_server
from inferometer.cli.uploads import finish, progress
from inferometer.errors import UserError, named
from inferometer.printable import printable

_NAMES = SERVER_NAMES | {"server.model": "--model NAME"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("url_a", metavar="URL_A")
@click.argument("url_b", metavar="URL_B")
@click.option("--pairs", type=click.IntRange(min=2), default=8, show_default=True, help="The number of pairs of runs.")
@click.option("--config", "file", metavar="FILE", help="A config file (YAML) for everything but server.url.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set any key of the config, over the file."
)
@click.option("--model", help="The model to use on both servers. Default: the first that each lists.")
@server_options
@click.option("--rate", callback=number_or_range(float), metavar="N", help="Open loop: send N requests per second.")
@click.option(
    "--concurrency",
    callback=number_or_range(int),
    metavar="N",
    help="Closed loop: keep N requests in flight. Default: 16.",
)
@click.option("--duration", metavar="TIME", help="How long each run measures. Default: 30s.")
@click.option("--requests", type=int, metavar="N", help="Measure each run with this many requests instead.")
@click.option("--input", "input_tokens", type=int, metavar="N", help="The number of tokens in each prompt.")
@click.option("--output", "output_tokens", type=int, metavar="N", help="The number of tokens to generate per request.")
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Send this prompt. Can be repeated.")
@click.option("--slo", "slos", multiple=True, metavar="OBJECTIVE", help="Objectives, for the goodput. Can be repeated.")
@click.option("--start-a", metavar="CMD", help="Shell command that starts server A for each of its runs.")
@click.option("--start-b", metavar="CMD", help="The same for server B.")
@click.option(
    "--start-timeout",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long a started server may take to respond.",
)
@abort_options
@comparison_options
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def command(
    url_a: str,
    url_b: str,
    pairs: int,
    file: str | None,
    overrides: tuple[str, ...],
    model: str | None,
    server: dict[str, Any],
    rate: float | str | None,
    concurrency: int | str | None,
    duration: str | None,
    requests: int | None,
    input_tokens: int | None,
    output_tokens: int | None,
    prompts: tuple[str, ...],
    slos: tuple[str, ...],
    start_a: str | None,
    start_b: str | None,
    start_timeout: str,
    abort_on: tuple[str, ...],
    fail_if: tuple[str, ...],
    strict: bool,
    force: bool,
    json_path: str | None,
    html_path: str | None,
    markdown_path: str | None,
    junit_path: str | None,
    quiet: bool,
) -> int:
    """Measure the servers at URL_A and URL_B in turn (AB, BA, AB ...), in pairs with the same seed, and compare them.

    \b
    Two servers, 8 pairs of 30 s
      inferometer ab http://127.0.0.1:8000 http://127.0.0.1:8010 --rate 20
    Two builds: each is started for its runs and stopped after them
      inferometer ab http://127.0.0.1:8000 http://127.0.0.1:8000 --pairs 10 \\
        --start-a './old --port 8000' --start-b './new --port 8000'
    A gate in CI, and a page with charts
      inferometer ab http://127.0.0.1:8000 http://127.0.0.1:8010 --rate 20 \\
        --fail-if 'ttft.p99 worse by 5%' --html comparison.html

    All runs are stored in one folder, and `inferometer compare FOLDER` prints the comparison again. A pair with an INVALID run is
    left out unless --force is given, and if the first two pairs fail the same check, the
    measurement ends. Ctrl-C compares the pairs that are complete.

    Exit status: as for `inferometer compare`; 130 if it was interrupted before there was a pair to compare.
    """
    startup.prepare()
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.conduct.comparing import compare_pairs  # noqa: PLC0415
    from inferometer.conduct.pairs import Subject, measure_pairs, pairs_of  # noqa: PLC0415
    from inferometer.config import from_mapping, read_tree  # noqa: PLC0415
    from inferometer.config.secret import without_password  # noqa: PLC0415
    from inferometer.probe.scheme import DISCOVERY  # noqa: PLC0415
    from inferometer.report.compare_export import COMPARISON, ComparisonReport  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver  # noqa: PLC0415

    paths = {"json": json_path, "html": html_path, "markdown": markdown_path, "junit": junit_path}
    check_exports(paths)
    conditions = conduct.parse_conditions(fail_if)
    conduct.parse_slos(slos, "--slo")
    patience = _patience(start_timeout)
    subjects = {}
    for letter, url, start in (("A", url_a, start_a), ("B", url_b, start_b)):
        tree: dict[str, Any] = read_tree(file) if file is not None else {}
        section(tree, "server").update({"url": url} | ({"model": model} if model is not None else {}))
        set_server(tree, server)
        is_stable = any(setting.startswith("load.stable=") for setting in overrides)
        set_load(tree, rate, concurrency, duration, requests, is_stable)
        set_data(tree, input_tokens, output_tokens, prompts)
        if slos:
            tree["slo"] = list(slos)
        set_abort(tree, abort_on)
        with named(_NAMES, file or "command line"):
            config = from_mapping(tree, overrides, file or "command line", DISCOVERY if start is None else None)
        name = without_password(url) if "://" in url else url.rpartition("@")[2]
        name = name if url_a != url_b else f"{letter}: {start or name}"
        subjects[letter] = Subject(name, config, start or None, patience)

    def ended(line: str) -> None:
        if not quiet:
            click.echo(printable(f"  {line}"), err=True)

    with named(_NAMES):
        experiment = measure_pairs(subjects, pairs, progress(quiet), ended, force)
    complete = len(pairs_of(experiment))
    if not complete:
        raise click.Abort
    if complete < pairs:
        click.echo(f"interrupted: comparing {complete} of {pairs} pairs", err=True)
    compared = ComparisonReport([compare_pairs(experiment, conditions, force)], strict)
    status = deliver(COMPARISON, compared, paths)
    if "-" not in paths.values():
        click.echo(f" {experiment.folder}")
    return finish(experiment.folder, status, quiet)


def _patience(text: str) -> float:
    from inferometer.units import parse_seconds  # noqa: PLC0415

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UserError(f"--start-timeout: {error}", "write it as 90s or 10m") from None
