"""`inferometer ab`: measure two servers in interleaved pairs of runs, and compare them."""

import copy
from typing import Any

import click

from inferometer import options
from inferometer.cli import startup
from inferometer.cli.options import Command, names_of, options_of, paths_of, put_options
from inferometer.cli.uploads import finish, progress
from inferometer.errors import named
from inferometer.printable import printable


@click.command(cls=Command)
@click.argument("url_a", metavar="URL_A")
@click.argument("url_b", metavar="URL_B")
@options_of("ab")
def command(
    url_a: str, url_b: str, pairs: int, config: str | None, strict: bool, force: bool, quiet: bool, **given: Any
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

    paths = paths_of(given, "json", "html", "markdown", "junit")
    check_exports(paths)
    conditions = conduct.parse_conditions(given["fail_if"])
    base: dict[str, Any] = read_tree(config) if config is not None else {}
    origin = config or "command line"
    subjects = {}
    for letter, url in (("A", url_a), ("B", url_b)):
        start = given[f"start_{letter.lower()}"]
        tree = copy.deepcopy(base)
        with named(names_of("ab"), origin):
            options.put_value(tree, "server.url", url)
            put_options(tree, "ab", given)
            made = from_mapping(tree, given["set"], origin, DISCOVERY if start is None else None)
        name = without_password(url) if "://" in url else url.rpartition("@")[2]
        name = name if url_a != url_b else f"{letter}: {start or name}"
        subjects[letter] = Subject(name, made, start or None, given["start_timeout"])

    def ended(line: str) -> None:
        if not quiet:
            click.echo(printable(f"  {line}"), err=True)

    with named(names_of("ab")):
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
