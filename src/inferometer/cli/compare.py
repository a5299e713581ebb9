"""`inferometer compare`: whether B is better than A, by how much, and how sure that is."""

import click

from inferometer.cli import startup
from inferometer.cli.options import Command, options_of, paths_of


@click.command(cls=Command)
@click.argument("sides", metavar="A B [C ...]", nargs=-1, required=True)
@options_of("compare")
def command(sides: tuple[str, ...], fail_if: list[str], strict: bool, force: bool, **files: str | None) -> int:
    """Compare runs: each of B, C ... with A. A side is a run's folder, a folder of repeated runs, a quoted glob, or a URL of these.

    \b
    Two runs
      inferometer compare runs/20261116-101500-aaaa runs/20261116-102000-bbbb
    With charts
      inferometer compare runs/A runs/B --html comparison.html
    Repeated runs, which also show how much runs vary
      inferometer compare 'runs/before-*' 'runs/after-*'
    The pairs that `inferometer ab` measured
      inferometer compare runs/20261116-103000-cccc
    A gate in CI: exit status 1 if B is worse by more than 5 %
      inferometer compare A B --fail-if 'ttft.p99 worse by 5%' --junit out.xml

    Runs are compared only if they have the same workload, model, load and objectives, and are VALID and complete; --force
    compares them nevertheless. With one run per side, intervals do not cover run-to-run variation.

    Exit status: 0 no condition of --fail-if holds, 1 one holds, 2 bad input, or runs that should not be
    compared, 3 internal error.
    """
    startup.prepare()
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.report.compare_export import COMPARISON, ComparisonReport  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver  # noqa: PLC0415

    paths = paths_of(files, "json", "html", "markdown", "junit")
    check_exports(paths)
    conditions = conduct.parse_conditions(fail_if)
    found = conduct.compare_stored(sides, conditions, force)
    return deliver(COMPARISON, ComparisonReport(found, strict), paths)
