"""Sweeps: a run for each cell of a grid, or for each level of an adaptive range, all in one folder.

`sweep.json` in that folder lists the runs. It is written after each of them, so that a sweep that was interrupted, or killed, can be
reported as far as it came.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferometer import conduct, store
from inferometer.analysis.adaptive_levels import MOST, choose_next
from inferometer.analysis.settings import settings_label
from inferometer.analysis.sweep import Cell as MeasuredCell
from inferometer.analysis.sweep import Sweep, Unmeasured, levels_of, summarise_sweep
from inferometer.conduct.pairs import folder_for_runs
from inferometer.conduct.saving import Changes
from inferometer.config.grid import Cell, Grid, at_level, projected_seconds
from inferometer.config.ranges import level_name
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.store.folder import SWEEP, atomic_file

_OVERHEAD = 3.0
"""Seconds for the probe, the start of the client and the records of a run."""

Note = Callable[[str], conduct.Show | None]
"""Called before each run with a line that says which it is; returns what shows the run, if anything."""


class SweepRun(msgspec.Struct, frozen=True):
    """A run of a sweep: the name of its folder, or why it was not measured."""

    settings: dict[str, Any]
    run: str = ""
    error: str = ""


class SweepList(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of sweep.json."""

    schema: int = 1
    keys: tuple[str, ...]
    runs: tuple[SweepRun, ...] = ()
    interrupted: bool = False


def measure_sweep(grid: Grid, note: Note) -> tuple[Sweep, list[MeasuredCell]]:
    """Measure every cell. After a Ctrl-C, it returns what was measured, with the run that was interrupted.

    A run that cannot be measured is reported as such, and the sweep goes on; if that happens to the first run, it raises.
    """
    known = SweepList(keys=grid.keys)
    measured: list[MeasuredCell] = []
    with folder_for_runs(grid.cells[0].config) as folder:
        for cell, config, line in _runs(grid, measured):
            entry = SweepRun(cell.settings)
            try:
                run, summary = conduct.measure(msgspec.structs.replace(config, output=str(folder)), note(line))
            except KeyboardInterrupt:  # before its first request
                if not measured:
                    raise
                known = msgspec.structs.replace(known, interrupted=True)
            except UserError as error:
                if not measured:
                    raise
                entry = msgspec.structs.replace(entry, error=str(error))
            else:
                measured.append((cell.settings, run, summary))
                entry = msgspec.structs.replace(entry, run=run.folder.name)
                known = msgspec.structs.replace(known, interrupted=run.manifest.outcome.interrupted)
            if entry.run or entry.error:
                known = msgspec.structs.replace(known, runs=(*known.runs, entry))
            _write(folder, known)
            store.point_latest(folder)
            if known.interrupted:
                break
    return _summarised(folder, known, measured), measured


def _runs(grid: Grid, measured: Sequence[MeasuredCell]) -> Iterator[tuple[Cell, Config, str]]:
    """Each run's cell, config and line of progress. With an adaptive range, the next level depends on what was measured."""
    for number, cell in enumerate(grid.cells, 1):
        words = " · ".join([f"run {number} of {len(grid.cells)}", *_words(cell)])
        if grid.adaptive is None:
            yield cell, cell.config, words
            continue
        for count in range(1, MOST + 1):
            own = [
                level
                for settings, run, summary in measured
                if settings == cell.settings
                for level in levels_of(run, summary)
            ]
            level = choose_next(own, grid.adaptive)
            if level is None or len(own) < count - 1:  # the last level could not be measured
                break
            name = level_name(grid.adaptive.by, level)
            prefix = f"{' · '.join(_words(cell))} · " if cell.settings else ""
            yield cell, at_level(cell.config, grid.adaptive, level), f"level {count} of at most {MOST} · {prefix}{name}"


def _words(cell: Cell) -> list[str]:
    return [settings_label(cell.settings)] if cell.settings else []


def projection(grid: Grid) -> tuple[int, float | None]:
    """The number of runs at most, and about how many seconds they take; None if only numbers of requests end them."""
    each = MOST if grid.adaptive is not None else 1
    seconds = [projected_seconds(cell.config) for cell in grid.cells]
    count = each * len(grid.cells)
    known = [one for one in seconds if one is not None]
    return count, each * sum(known) + _OVERHEAD * count if len(known) == len(seconds) else None


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP).exists()


def open_sweep(
    folder: Path, slos: Sequence[str] | None = None, changes: Changes | None = None
) -> tuple[Sweep, list[MeasuredCell]]:
    """Open a stored sweep; `slos` are objectives to judge it by instead of its own, and `changes` other settings of the report."""
    try:
        known = msgspec.json.decode((folder / SWEEP).read_bytes(), type=SweepList)
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(
            f"{folder / SWEEP}: cannot be read: {error}", "report the runs in the folder one by one"
        ) from None
    measured = [
        (each.settings, *conduct.open_run(str(folder / each.run), slos, changes)) for each in known.runs if each.run
    ]
    if not measured:
        raise UserError(f"{folder}: the sweep has no runs", "run it again")
    return _summarised(folder.resolve() if folder.is_symlink() else folder, known, measured), measured


def _summarised(folder: Path, known: SweepList, measured: Sequence[MeasuredCell]) -> Sweep:
    unmeasured = [Unmeasured(each.settings, each.error) for each in known.runs if each.error]
    return summarise_sweep(str(folder), known.keys, measured, unmeasured, known.interrupted)


def _write(folder: Path, known: SweepList) -> None:
    with atomic_file(folder / SWEEP) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")
