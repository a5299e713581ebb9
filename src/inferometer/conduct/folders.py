"""What is stored in a folder: a run, or what several runs make together."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from inferometer.analysis.comparison import Measured
from inferometer.conduct.campaign_reading import is_campaign
from inferometer.conduct.comparing import folders_of, has_pairs, is_glob, runs_in
from inferometer.conduct.saving import open_run
from inferometer.conduct.sweep import is_sweep
from inferometer.errors import UserError
from inferometer.report.capacity_output import is_capacity
from inferometer.store.folder import MANIFEST

Stored = Literal["run", "runs", "pairs", "sweep", "capacity", "campaign"]


def stored_in(names: Sequence[str]) -> Stored:
    """What a folder contains; several folders are several runs. A folder that is nothing else is taken for a run."""
    folders = [folder for name in names for folder in folders_of(name)]
    if len(folders) > 1:
        return "runs"
    folder = folders[0]
    if is_campaign(folder):
        return "campaign"
    if is_sweep(folder):
        return "sweep"
    if is_capacity(folder):
        return "capacity"
    if has_pairs(folder):
        return "pairs"
    return "runs" if len(runs_in(folder)) > 1 else "run"


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
        kind = stored_in([str(folder)])
        if kind == "run" or (kind == "runs" and not is_match):
            folders |= {run.resolve(): is_match for run in runs_in(folder) or [folder]}
        elif skip is not None:
            skip(UserError(f"{folder} is not a single run", f"see inferometer report {folder}"))
    if not folders:
        raise UserError(f"{' '.join(names)}: there is no single run", "report one folder: inferometer report FOLDER")
    measured = []
    for number, (folder, is_match) in enumerate(folders.items(), 1):
        try:
            measured.append(open_run(str(folder), slos))
        except UserError as error:
            if skip is None or not is_match or (number == len(folders) and not measured):
                raise
            skip(error)
    return measured


def _members(folder: Path) -> list[tuple[Path, bool]]:
    """The runs in a folder, and the folders of several runs in it, which count as matches of a glob."""
    inner = sorted(folder.iterdir()) if runs_in(folder) else []
    members = [(each, not (each / MANIFEST).exists()) for each in inner if each.is_dir() and not each.is_symlink()]
    return [one for one in members if not one[1] or stored_in([str(one[0])]) != "run"] or [(folder, False)]
