"""An experiment: several runs in one folder, measured one after the other, and runs.json, which lists them.

Repeats, pairs, grids, adaptive levels and searches differ in how the next run is chosen, which is a generator of cells, and in what the
runs mean together, which is a row of the table in kinds.py. What happens to the cells is the same, and is here: Ctrl-C ends the
experiment with what was measured, a bucket as the output is checked before the first run, and runs.json is written after every run, so
that an experiment that was interrupted, or killed, can be reported as far as it came.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferometer import conduct, store
from inferometer.analysis.summary import Summary
from inferometer.analysis.sweep import MeasuredCell
from inferometer.conduct.interrupts import terminable
from inferometer.conduct.measuring import Watch
from inferometer.conduct.saving import Changes
from inferometer.conduct.uploading import discard_if_unused, mark, prepare
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.records import Probe, Run
from inferometer.report.live import Show
from inferometer.store.folder import LISTS, RUNS, atomic_file

Note = Callable[[str], Show | None]
"""Called before each run with a line that says which it is; returns what shows the run, if anything."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is to be measured."""

    settings: dict[str, Any]
    """What is different from the other runs."""
    config: Config
    line: str = ""
    """Which of the runs it is, for the progress."""
    around: Callable[[Path], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    """What surrounds the run, such as a server that is started for it; gets the folder."""
    watch: Watch | None = None
    probe: Probe | None = None
    """What a probe of the server showed before; by default, there is a probe before the run."""
    ended_itself: Callable[[], bool] = lambda: False
    """Whether it was the watch that interrupted the run, not the user."""


Choose = Callable[[list[MeasuredCell]], Iterator[Cell]]
"""Yields one cell after the other. It sees what was measured until then, one run more after each cell, unless that failed; and may
remove what it needs no more."""


class ListedRun(msgspec.Struct, frozen=True):
    """A run of an experiment: the name of its folder, or why it was not measured."""

    settings: dict[str, Any]
    run: str = ""
    error: str = ""


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of runs.json."""

    schema: int = 1
    kind: str
    """A key of KINDS (kinds.py)."""
    keys: tuple[str, ...] = ()
    """Of a sweep: the keys of the grid."""
    sides: tuple[str, ...] = ()
    """Of pairs: the names of A and B."""
    runs: tuple[ListedRun, ...] = ()
    interrupted: bool = False


class Experiment:
    """The runs in a folder."""

    def __init__(
        self, folder: Path, listed: RunList, measured: Sequence[MeasuredCell] = (), is_latest: bool = False
    ) -> None:
        self.folder = folder.resolve() if folder.is_symlink() else folder
        self.listed = listed
        self.measured = list(measured)
        self._is_latest = is_latest

    @property
    def runs(self) -> list[tuple[Run, Summary]]:
        """The runs that were measured."""
        return [(run, summary) for _, run, summary in self.measured]

    def add(self, *entry: ListedRun, interrupted: bool = False) -> None:
        """Put a run on the list, and write it."""
        listed = msgspec.structs.replace(self.listed, runs=(*self.listed.runs, *entry), interrupted=interrupted)
        self.listed = listed
        with atomic_file(self.folder / RUNS) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(listed), indent=2) + b"\n")
        if self._is_latest:
            store.point_latest(self.folder)


@contextlib.contextmanager
def new_experiment(config: Config, listed: RunList) -> Iterator[Experiment]:
    """Make the folder; if nothing was stored in it, it is removed.

    If the output is a bucket, it must be writable; whoever calls this uploads the folder at the end (uploading.finish). SIGTERM between
    the runs counts as Ctrl-C.
    """
    config, upload = prepare(config)
    folder = store.new_folder(config.output)
    mark(folder, upload)
    try:
        with terminable():
            yield Experiment(folder, listed, is_latest=True)
    finally:
        discard_if_unused(folder)


def measure_cells(
    experiment: Experiment,
    choose: Choose,
    note: Note = lambda line: None,
    *,
    keeps_errors: bool = False,
    keeps_interrupted: bool = False,
) -> None:
    """Measure one cell after the other. Ctrl-C ends it, whenever it comes; before the end of the first run, it raises KeyboardInterrupt.

    The run that Ctrl-C interrupted counts only if it is the first, or with `keeps_interrupted`. An error of a run ends the experiment;
    with `keeps_errors`, it is listed, and the next run is measured, unless it was the first.
    """
    try:
        for cell in choose(experiment.measured):
            config = msgspec.structs.replace(cell.config, output=str(experiment.folder))
            more = (cell.watch, cell.probe) if cell.watch is not None else ()
            try:
                with cell.around(experiment.folder):
                    run, summary = conduct.measure(config, note(cell.line), *more)
            except UserError as error:
                if not (experiment.listed.runs and keeps_errors):
                    raise
                experiment.add(ListedRun(cell.settings, error=str(error)))
                continue
            interrupted = run.manifest.outcome.interrupted and not cell.ended_itself()
            if interrupted and experiment.listed.runs and not keeps_interrupted:
                raise KeyboardInterrupt
            experiment.measured.append((cell.settings, run, summary))
            experiment.add(ListedRun(cell.settings, run.folder.name), interrupted=interrupted)
            if interrupted:
                return
    except KeyboardInterrupt:
        if not experiment.listed.runs:
            raise
        experiment.add(interrupted=True)


# --- stored experiments ----------------------------------------------------------------------------------------------


def kind_in(folder: Path) -> str:
    """The kind of the experiment in a folder, a key of KINDS (kinds.py); "" if there is none."""
    if (folder / RUNS).exists():
        return read_list(folder).kind
    return next((kind for name, kind in LISTS.items() if (folder / name).exists()), "")


def read_list(folder: Path) -> RunList:
    """Read the list of a folder's runs. Raises UserError when it cannot be read."""
    name = next((name for name in (RUNS, "sweep.json", "pairs.json") if (folder / name).exists()), RUNS)
    try:
        data = (folder / name).read_bytes()
        if name == RUNS:
            return msgspec.json.decode(data, type=RunList)
        return _older(msgspec.json.decode(data), LISTS[name])
    except (OSError, ValueError, KeyError, TypeError) as error:  # msgspec's errors are ValueErrors
        raise UserError(
            f"{folder / name}: cannot be read: {error}", "report the runs in the folder one by one"
        ) from None


def _older(tree: dict[str, Any], kind: str) -> RunList:
    """The list of a folder from before runs.json."""
    if kind == "ab":
        runs = [
            {"settings": {"pair": number, "side": side}, "run": run}
            for number, pair in enumerate(tree["pairs"])
            for side, run in zip("AB", pair, strict=True)
        ]
        return msgspec.convert({"kind": kind, "sides": [tree["a"], tree["b"]], "runs": runs}, RunList)
    return msgspec.convert(tree | {"kind": kind}, RunList)


def open_experiment(folder: Path, slos: Sequence[str] | None = None, changes: Changes | None = None) -> Experiment:
    """Open the runs on a folder's list; `slos` are objectives to judge them by instead of their own, and `changes` other settings of
    the report."""
    listed = read_list(folder)
    measured = [
        (each.settings, *conduct.open_run(str(folder / each.run), slos, changes)) for each in listed.runs if each.run
    ]
    if not measured:
        raise UserError(f"{folder}: the experiment has no runs", "run it again")
    return Experiment(folder, listed, measured)
