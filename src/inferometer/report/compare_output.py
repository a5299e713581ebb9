"""Where a comparison goes: to the terminal, and to files on request. `compare` and `ab` both end here."""

from collections.abc import Callable, Mapping, Sequence

import click

from inferometer.analysis.comparison import Compared, Comparison
from inferometer.report import compare, junit, markdown
from inferometer.report.output import check_paths, wants_color, write_file


def _html(compared: Sequence[Compared]) -> bytes:
    from inferometer.report.html import compare_page  # noqa: PLC0415 (the other files do without it)

    return compare_page.encode(compared)


_WRITERS: dict[str, Callable[[Sequence[Compared]], bytes]] = {
    "json": lambda compared: compare.encode(_found(compared)),
    "html": _html,
    "markdown": lambda compared: markdown.comparison_summary(_found(compared)).encode(),
    "junit": lambda compared: junit.comparison_suite(_found(compared)),
}


def _found(compared: Sequence[Compared]) -> list[Comparison]:
    return [each.found for each in compared]


def check_comparison_paths(paths: Mapping[str, str | None]) -> None:
    """Check before a measurement that the files can be written. Raises UserError when one cannot."""
    check_paths({f"--{name}": path for name, path in paths.items()})


def deliver_comparison(compared: Sequence[Compared], paths: Mapping[str, str | None], strict: bool = False) -> int:
    """Print the comparisons, write the files, and return the exit status: 1 if a condition fails."""
    found = _found(compared)
    if "-" not in paths.values():
        click.echo(compare.render(found, wants_color()), nl=False, color=True)
    for name, path in paths.items():
        if path is not None:
            encoded = _WRITERS[name](compared)
            write_file(path, lambda file, encoded=encoded: file.write(encoded))  # type: ignore[misc]
    return 0 if all(each.is_passed(strict) for each in found) else 1
