"""`inferometer compare`: whether B is better than A, by how much, and how sure that is."""

import click

from inferometer.cli import startup
from inferometer.cli.options import comparison_options


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("sides", metavar="A B [C ...]", nargs=-1, required=True)
@comparison_options
def command(
    sides: tuple[str, ...],
    fail_if: tuple[str, ...],
    strict: bool,
    force: bool,
    json_path: str | None,
    html_path: str | None,
    markdown_path: str | None,
    junit_path: str | None,
) -> int:
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

    paths = {"json": json_path, "html": html_path, "markdown": markdown_path, "junit": junit_path}
    check_exports(paths)
    conditions = conduct.parse_conditions(fail_if)
    found = conduct.compare_stored(sides, conditions, force)
    return deliver(COMPARISON, ComparisonReport(found, strict), paths)
