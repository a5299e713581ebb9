"""What is stored in a folder, a run or an experiment, and its report: one row of KINDS for each kind.

A row says how a folder of its kind is opened, which is the analysis of its runs, and how the result is shown (report/output.py). `report`,
`plot` and the commands that measure several runs all go through it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from inferometer import conduct
from inferometer.analysis.summary import Measured
from inferometer.conduct.campaign_reading import open_campaign
from inferometer.conduct.comparing import compare_pairs, folders_of, is_glob, runs_in, runs_of
from inferometer.conduct.experiment import kind_in, open_experiment
from inferometer.conduct.remote import local_names
from inferometer.conduct.saving import Changes
from inferometer.conduct.sweep import summarised
from inferometer.errors import UserError
from inferometer.report import capacity_export
from inferometer.report.compare_export import COMPARISON, ComparisonReport
from inferometer.report.engines_export import ENGINES
from inferometer.report.output import RUN, Report, RunReport
from inferometer.report.repeats import RUNS, RunsReport
from inferometer.report.sweep import SWEEP
from inferometer.store.folder import CAPACITY, MANIFEST

if TYPE_CHECKING:
    from inferometer.report.html.page import Page


class Asked(msgspec.Struct, frozen=True):
    """What a report of stored runs is asked for, beyond what is stored."""

    slos: Sequence[str] | None = None
    """Objectives to judge the runs by instead of their own."""
    changes: Changes | None = None
    """Settings of the report, over those of the runs."""
    strict: bool = False
    explain: bool = False
    histogram: bool = False
    why: bool = False
    skip: Callable[[UserError], object] | None = None
    """Gets the errors of folders that a glob matches and that are left out (`open_runs`)."""


class Kind(msgspec.Struct, frozen=True):
    open: Callable[[Sequence[str], Asked], Any]
    """Opens the folders; most kinds have one. What it returns is what the report takes."""
    report: Report[Any]
    takes_slos: bool = True
    takes_costs: bool = False


def _open_run(names: Sequence[str], asked: Asked) -> RunReport:
    run, summary = conduct.open_run(str(runs_of(names[0])[0]), asked.slos, asked.changes)
    return RunReport(run, summary, asked.strict, asked.explain, asked.histogram, asked.why)


def _open_capacity(names: Sequence[str], asked: Asked) -> capacity_export.CapacityReport:
    found, manifest = capacity_export.read(Path(names[0]))
    return capacity_export.CapacityReport(msgspec.structs.replace(found, strict=found.strict or asked.strict), manifest)


KINDS: dict[str, Kind] = {
    "run": Kind(_open_run, RUN, takes_costs=True),
    "repeats": Kind(
        lambda names, asked: RunsReport(" ".join(names), open_runs(names, asked.slos, asked.skip), asked.strict), RUNS
    ),
    "ab": Kind(
        lambda names, asked: ComparisonReport([compare_pairs(open_experiment(Path(names[0])))], asked.strict),
        COMPARISON,
        takes_slos=False,
    ),
    "sweep": Kind(
        lambda names, asked: summarised(open_experiment(Path(names[0]), asked.slos, asked.changes), asked.strict),
        SWEEP,
        takes_costs=True,
    ),
    "capacity": Kind(_open_capacity, capacity_export.SEARCH, takes_slos=False),
    "engines": Kind(
        lambda names, asked: open_campaign(Path(names[0]), asked.slos, asked.changes), ENGINES, takes_costs=True
    ),
}


def kind_of(names: Sequence[str]) -> str:
    """What a folder contains; several folders are several runs. A folder that is nothing else is taken for a run."""
    folders = [folder for name in names for folder in folders_of(name)]
    if len(folders) > 1:
        return "repeats"
    kind = kind_in(folders[0])
    if kind == "capacity" and not (folders[0] / CAPACITY).exists():  # it was killed: there are probes, and no answer
        return "repeats"
    return kind or ("repeats" if len(runs_in(folders[0])) > 1 else "run")


def open_page(name: str) -> "Page":
    """The page of the folder or URL, or of the runs that a glob finds. Raises UserError when nothing is stored there."""
    names = local_names([name])
    kind = KINDS[kind_of(names)]
    return kind.report.page(kind.open(names, Asked()))


def open_runs(
    names: Sequence[str], slos: Sequence[str] | None = None, skip: Callable[[UserError], object] | None = None
) -> list[Measured]:
    """Open the runs that names stand for: folders of runs or of repeats, a folder that contains runs, and globs. Each is opened once.

    Searches, sweeps and other folders with a report of their own are left out. So is a folder that matches a glob and has repeats, or
    cannot be opened, such as that of a run in progress, if there is a `skip`, which gets the errors.
    """
    named = [(folder, is_glob(name)) for name in names for folder in folders_of(name)]
    if len(named) == 1:
        named = _members(named[0][0])
    folders: dict[Path, bool] = {}
    for folder, is_match in named:
        kind = kind_of([str(folder)])
        if kind == "run" or (kind == "repeats" and not is_match):
            folders |= {run.resolve(): is_match for run in runs_in(folder) or [folder]}
        elif skip is not None:
            skip(UserError(f"{folder} is not a single run", f"see inferometer report {folder}"))
    if not folders:
        raise UserError(f"{' '.join(names)}: there is no single run", "report one folder: inferometer report FOLDER")
    measured = []
    for number, (folder, is_match) in enumerate(folders.items(), 1):
        try:
            measured.append(conduct.open_run(str(folder), slos))
        except UserError as error:
            if skip is None or not is_match or (number == len(folders) and not measured):
                raise
            skip(error)
    return measured


def _members(folder: Path) -> list[tuple[Path, bool]]:
    """The runs in a folder, and the folders of several runs in it, which count as matches of a glob."""
    if kind_in(folder):
        return [(run, False) for run in runs_in(folder)]
    inner = sorted(folder.iterdir()) if runs_in(folder) else []
    members = [(each, not (each / MANIFEST).exists()) for each in inner if each.is_dir() and not each.is_symlink()]
    return [one for one in members if not one[1] or kind_of([str(one[0])]) != "run"] or [(folder, False)]
