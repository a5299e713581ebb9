"""Sweeps: a run for each cell of a grid, or for each level of an adaptive range."""

from collections.abc import Iterator

from inferometer.analysis.adaptive_levels import MOST, choose_next
from inferometer.analysis.settings import settings_label
from inferometer.analysis.sweep import MeasuredCell, Unmeasured, levels_of, problems, summarise_sweep
from inferometer.conduct.experiment import Cell, Experiment, Note, RunList, measure_cells, new_experiment
from inferometer.config.grid import Grid, at_level, projected_seconds
from inferometer.config.ranges import level_name
from inferometer.report.sweep import SweepReport

_OVERHEAD = 3.0
"""Seconds for the probe, the start of the client and the records of a run."""


def measure_sweep(grid: Grid, note: Note) -> Experiment:
    """Measure every cell. After a Ctrl-C, it returns what was measured, with the run that was interrupted.

    A run that cannot be measured is reported as such, and the sweep goes on; if that happens to the first run, it raises.
    """

    def choose(measured: list[MeasuredCell]) -> Iterator[Cell]:
        """With an adaptive range, the next level depends on what was measured."""
        for number, cell in enumerate(grid.cells, 1):
            words = [settings_label(cell.settings)] if cell.settings else []
            if grid.adaptive is None:
                line = " · ".join([f"run {number} of {len(grid.cells)}", *words])
                yield Cell(settings=cell.settings, config=cell.config, line=line)
                continue
            for count in range(1, MOST + 1):
                runs = [(run, summary) for settings, run, summary in measured if settings == cell.settings]
                level = choose_next([level for each in runs for level in levels_of(*each)], grid.adaptive)
                if level is None or len(runs) < count - 1:  # the last level could not be measured
                    break
                line = " · ".join([f"level {count} of at most {MOST}", *words, level_name(grid.adaptive.by, level)])
                yield Cell(settings=cell.settings, config=at_level(cell.config, grid.adaptive, level), line=line)

    with new_experiment(grid.cells[0].config, RunList(kind="sweep", keys=grid.keys)) as experiment:
        measure_cells(experiment, choose, note, keeps_errors=True, keeps_interrupted=True)
    return experiment


def projection(grid: Grid) -> tuple[int, float | None]:
    """The number of runs at most, and about how many seconds they take; None if only numbers of requests end them."""
    each = MOST if grid.adaptive is not None else 1
    seconds = [projected_seconds(cell.config) for cell in grid.cells]
    count = each * len(grid.cells)
    known = [one for one in seconds if one is not None]
    return count, each * sum(known) + _OVERHEAD * count if len(known) == len(seconds) else None


def summarised(experiment: Experiment, strict: bool = False) -> SweepReport:
    """What the runs of a sweep mean together."""
    listed = experiment.listed
    unmeasured = [Unmeasured(each.settings, each.error) for each in listed.runs if each.error]
    measured = experiment.measured
    sweep = summarise_sweep(str(experiment.folder), listed.keys, measured, unmeasured, listed.interrupted)
    return SweepReport(sweep, measured, problems(sweep, measured, strict))
