"""Where a comparison of engines goes: to the terminal, and to files on request. `engines` and `report` both end here."""

from collections.abc import Callable, Mapping

import click

from inferometer.analysis.engine_results import EngineResults
from inferometer.report import engines, engines_export
from inferometer.report.json import encode
from inferometer.report.output import wants_color, write_file
from inferometer.report.width import columns


def _html(found: EngineResults) -> bytes:
    from inferometer.report.html import engines_page  # noqa: PLC0415 (the other files do without it)

    return engines_page.encode(found)


_WRITERS: dict[str, Callable[[EngineResults], bytes]] = {
    "json": encode,
    "html": _html,
    "markdown": lambda found: engines_export.summary(found).encode(),
    "csv": engines_export.csv_rows,
    "junit": engines_export.suite,
}
FORMATS = tuple(_WRITERS)


def deliver_engines(found: EngineResults, exports: Mapping[str, str]) -> int:
    """Print the answer, write the files, and return the exit status: 1 if no engine could be measured."""
    if "-" not in exports.values():
        click.echo(engines.render(found, wants_color(), columns(most=engines.WIDEST)), nl=False, color=True)
    for name, path in exports.items():
        encoded = _WRITERS[name](found)
        write_file(path, lambda file, encoded=encoded: file.write(encoded))  # type: ignore[misc]
    return status(found)


def status(found: EngineResults) -> int:
    """0 if at least one engine was measured; engines that failed have a row that says why."""
    return 0 if any(engine.status == "ok" for engine in found.engines) else 1
