"""Where a comparison goes: to the terminal, and to files on request. `compare` and `ab` both end here."""

from collections.abc import Mapping, Sequence

import click

from inferometer.analysis.comparison import Comparison
from inferometer.report import compare, junit, markdown
from inferometer.report.output import check_paths, wants_color, write_file

_WRITERS = {
    "json": compare.encode,
    "markdown": lambda found: markdown.comparison_summary(found).encode(),
    "junit": junit.comparison_suite,
}


def check_comparison_paths(paths: Mapping[str, str | None]) -> None:
    """Check before a measurement that the files can be written. Raises UserError when one cannot."""
    check_paths({f"--{name}": path for name, path in paths.items()})


def deliver_comparison(
    found: Sequence[Comparison], paths: Mapping[str, str | None], allow_undecided: bool = False
) -> int:
    """Print the comparisons, write the files, and return the exit status: 1 if a condition fails, or is undecided."""
    if "-" not in paths.values():
        click.echo(compare.render(found, wants_color()), nl=False, color=True)
    for name, path in paths.items():
        if path is not None:
            encoded = _WRITERS[name](found)
            write_file(path, lambda file, encoded=encoded: file.write(encoded))  # type: ignore[misc]
    return 0 if all(each.is_passed(allow_undecided) for each in found) else 1
