"""`inferometer ab`: measure two servers in interleaved pairs of runs, and compare them."""

import copy
import time
from typing import TYPE_CHECKING, Any

import click

from inferometer import options
from inferometer.cli import startup
from inferometer.cli.options import Command, names_of, options_of, paths_of, put_options
from inferometer.cli.uploads import finish
from inferometer.errors import named
from inferometer.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferometer.conduct.pairs import Ended, Note, Starter
    from inferometer.config import Config


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
    from inferometer.conduct.pairs import Starter, measure_pairs  # noqa: PLC0415
    from inferometer.config import from_mapping, read_tree  # noqa: PLC0415
    from inferometer.config.secret import without_password  # noqa: PLC0415
    from inferometer.probe.scheme import DISCOVERY  # noqa: PLC0415
    from inferometer.report.compare_output import check_comparison_paths, deliver_comparison  # noqa: PLC0415

    paths = paths_of(given, "json", "html", "markdown", "junit")
    check_comparison_paths(paths)
    conditions = conduct.parse_conditions(given["fail_if"])
    base: dict[str, Any] = read_tree(config) if config is not None else {}
    origin = config or "command line"
    sides = []
    for letter, url in (("A", url_a), ("B", url_b)):
        start = given[f"start_{letter.lower()}"]
        tree = copy.deepcopy(base)
        with named(names_of("ab"), origin):
            options.put_value(tree, "server.url", url)
            put_options(tree, "ab", given)
            made = from_mapping(tree, given["set"], origin, DISCOVERY if start is None else None)
        name = without_password(url) if "://" in url else url.rpartition("@")[2]
        name = name if url_a != url_b else f"{letter}: {start or name}"
        sides.append((name, made, Starter(start, given["start_timeout"]) if start else None))
    note, ended = _progress(sides, quiet)
    with named(names_of("ab")):
        folder, complete = measure_pairs(sides, pairs, note, ended, force)
    if not complete:
        raise click.Abort
    if complete < pairs:
        click.echo(f"interrupted: comparing {complete} of {pairs} pairs", err=True)
    status = deliver_comparison([compare_pairs(folder, conditions, force)], paths, strict)
    if "-" not in paths.values():
        click.echo(f" {folder}")
    return finish(folder, status, quiet)


def _progress(sides: "Sequence[tuple[str, Config, Starter | None]]", quiet: bool) -> "tuple[Note, Ended]":
    """What to call before a run and after it: a line each, and a live view in between."""
    from inferometer.config.grid import projected_seconds  # noqa: PLC0415
    from inferometer.config.secret import without_password  # noqa: PLC0415
    from inferometer.report.live import LiveView  # noqa: PLC0415
    from inferometer.units import format_seconds  # noqa: PLC0415

    began = time.monotonic()

    def note(number: int, of: int, side: str) -> LiveView | None:
        if quiet:
            return None
        config = sides["AB".index(side)][1]
        per_run = (time.monotonic() - began) / (number - 1) if number > 1 else projected_seconds(config)
        left = f" · about {format_seconds(round(per_run * (of - number + 1)))} left" if per_run else ""
        click.echo(f"run {number} of {of} · {side} {without_password(config.server.urls[0])}{left}", err=True)
        return LiveView()

    def ended(line: str) -> None:
        if not quiet:
            click.echo(printable(f"  {line}"), err=True)

    return note, ended
