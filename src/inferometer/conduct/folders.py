"""What is stored in a folder: a run, or what several runs make together."""

from pathlib import Path
from typing import Literal

from inferometer.conduct.campaign_reading import is_campaign
from inferometer.conduct.comparing import has_pairs, runs_in, runs_of
from inferometer.conduct.sweep import is_sweep
from inferometer.report.capacity_output import is_capacity

Stored = Literal["run", "runs", "pairs", "sweep", "capacity", "campaign"]


def stored_in(names: tuple[str, ...]) -> Stored:
    """What a folder contains; several folders, or a glob, are several runs. A folder that is nothing else is taken for a run."""
    folder = Path(names[0])
    if len(names) > 1 or not folder.is_dir():
        return "runs" if len([run for name in names for run in runs_of(name)]) > 1 else "run"
    if is_campaign(folder):
        return "campaign"
    if is_sweep(folder):
        return "sweep"
    if is_capacity(folder):
        return "capacity"
    if has_pairs(folder):
        return "pairs"
    return "runs" if len(runs_in(folder)) > 1 else "run"
