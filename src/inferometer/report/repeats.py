"""Repeated runs in the terminal and in files: each run's verdict, and how much the figures vary between and within runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from inferometer.analysis.comparison_text import title
from inferometer.analysis.repeats import Repeats, Variation, summarise_repeats
from inferometer.analysis.slo import is_passed
from inferometer.analysis.summary import Summary
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.report import junit, markdown, tables
from inferometer.report.compare import amount
from inferometer.report.console import new_console
from inferometer.report.json import with_words
from inferometer.report.output import wants_color, write_file
from inferometer.report.width import columns

_EXPORTS = ("json", "markdown", "junit")
_HEADER = ("mean", "95 % CI of the mean", "between runs", "within a run")
_ONLY_IN_JSON = ("mean", "p90", "p95")


def check_repeat_exports(exports: Mapping[str, str]) -> None:
    """Raise UserError for exports that are about a single run."""
    for name in exports:
        if name not in _EXPORTS:
            raise UserError(
                f"--{name} is about a single run, and --repeat makes several",
                f"export each run with inferometer report RUN_DIR --{name} PATH",
            )


def deliver_repeats(
    folder: Path,
    measured: Sequence[tuple[Run, Summary]],
    exports: Mapping[str, str],
    allow_undecided: bool,
) -> int:
    """Print the variation between runs, write the exports, and return the exit status: 1 if that of one run is 1."""
    found = summarise_repeats(measured)
    if "-" not in exports.values():
        click.echo(render(folder, found, wants_color(), columns()), nl=False, color=True)
    cases = [
        case for number, (_, summary) in enumerate(measured, 1) for case in junit.run_cases(summary, f"run {number}.")
    ]
    writers = {
        "json": lambda: _encode(found),
        "markdown": lambda: _markdown(folder, found).encode(),
        "junit": lambda: junit.encode(str(folder), cases),
    }
    for name, path in exports.items():
        encoded = writers[name]()
        write_file(path, lambda file, encoded=encoded: file.write(encoded))  # type: ignore[misc]
    passed = all(one.verdict == "VALID" and is_passed(one.slos, allow_undecided) for _, one in measured)
    return 0 if passed else 1


def render(folder: Path, found: Repeats, color: bool, width: int) -> str:
    """Render the table of each stage for `width` columns."""
    console = new_console(color, width)
    with console.capture() as capture:
        console.print(Padding(Text(_verdicts(found), style="bold"), (0, 0, 1, 1)))
        for name, metrics in _stages(found):
            console.print(Padding(_table(name, metrics), (0, 0, 1, 1)))
        console.print(Text(f" {folder}", style="dim"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _encode(found: Repeats) -> bytes:
    return msgspec.json.format(msgspec.json.encode(with_words(msgspec.to_builtins(found))), indent=2) + b"\n"


def _verdicts(found: Repeats) -> str:
    invalid = [number for number, verdict in enumerate(found.verdicts, 1) if verdict == "INVALID"]
    which = f", INVALID: {', '.join(map(str, invalid))}" if invalid else ", all VALID"
    return f"{len(found.runs)} runs{which}"


def _stages(found: Repeats) -> list[tuple[str, dict[str, Variation]]]:
    return [(stage.name, stage.metrics) for stage in found.stages] or [("", found.metrics)]


def _table(name: str, metrics: Mapping[str, Variation]) -> RenderableType:
    table = tables.table(name or "variation", list(_HEADER))
    for key, one in metrics.items():
        if not key.endswith(_ONLY_IN_JSON):
            table.add_row(title(key), *(f"{cell} " for cell in _cells(one)))
    note = "standard deviation between runs, and standard error within a run, both as a share of the mean"
    return Group(table, Text(note, style="dim"))


def _cells(one: Variation) -> tuple[str, ...]:
    low, high = one.ci
    interval = "-" if low is None else f"{amount(low, one.unit)} .. {amount(high, one.unit)}"
    return amount(one.mean, one.unit), interval, _share(one.between), _share(one.within)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2g} %"


def _markdown(folder: Path, found: Repeats) -> str:
    lines = [f"## {_verdicts(found)}", "", markdown.escape(str(folder)), ""]
    for name, metrics in _stages(found):
        lines += [f"### {markdown.escape(name)}", ""] if name else []
        rows = [(title(key), *_cells(one)) for key, one in metrics.items()]
        lines += markdown.table(("metric", *_HEADER), rows)
    return "\n".join(lines).rstrip("\n") + "\n"
