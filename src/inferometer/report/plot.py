"""The charts of an HTML report as PNG or SVG files, from the same data.

matplotlib draws them. It comes with the extra `plot`, and is imported only for this.
"""

import difflib
import fnmatch
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from inferometer.errors import UserError
from inferometer.replacing import replaced
from inferometer.report import formatting
from inferometer.report.html.page import Block, Page, named_charts

FORMATS = ("png", "svg")
_OTHER_FORMATS = (".eps", ".gif", ".jpg", ".jpeg", ".pdf", ".webp")


def check_plotting(path: str | None) -> None:
    """Raises UserError when charts cannot be drawn, or there is no place for them."""
    if path is None:
        raise UserError("plot needs to know where to write", "add -o FOLDER, or -o FILE.png for a single chart")
    if Path(path).suffix.lower() in _OTHER_FORMATS:
        raise UserError(f"{path}: charts are written as PNG or SVG", "give a path that ends in .png or .svg")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("drawing charts needs matplotlib", "pip install 'inferometer[plot]'")


def choose(page: Page, patterns: Sequence[str]) -> dict[str, Block]:
    """The charts whose names match any of the patterns (`time-*`); all without patterns."""
    charts = named_charts(page)
    if not charts:
        raise UserError("there are no charts: nothing was measured", "run it again")
    for pattern in patterns:
        if not fnmatch.filter(charts, pattern):
            near = difflib.get_close_matches(pattern, charts, 3, 0.4) or list(charts)[:3]
            raise UserError(
                f"there is no chart {pattern!r}", f"did you mean {' or '.join(near)}? --list prints all {len(charts)}"
            )
    return {
        name: chart
        for name, chart in charts.items()
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


def write_charts(page: Page, charts: Mapping[str, Block], path: str, format: str, is_dark: bool = False) -> list[Path]:
    """Write the charts into the folder `path`, or a single one to the file `path`, and return the files."""
    target = Path(path)
    suffix = target.suffix.lower().removeprefix(".")
    if suffix in FORMATS and not target.is_dir():
        if len(charts) > 1:
            raise UserError(
                f"{path}: {len(charts)} charts do not fit into one file",
                f"give a folder, or choose one: --chart {next(iter(charts))}",
            )
        format, files = suffix, {target: next(iter(charts.values()))}
        folder = target.parent
    else:
        files = {target / f"{name}.{format}": chart for name, chart in charts.items()}
        folder = target
    from inferometer.report.plot_figure import draw  # noqa: PLC0415 (it imports matplotlib)

    source = formatting.one_line(" · ".join(filter(None, (page.title, page.subtitle))), 160)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, chart in files.items():
            with replaced(file) as partial:
                partial.write_bytes(draw(chart, source, format, is_dark))
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: {error.strerror or error}", "give a path that can be written"
        ) from None
    return list(files)
