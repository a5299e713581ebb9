"""The page of the HTML report for what is stored in a folder."""

from collections.abc import Callable
from pathlib import Path

from inferometer.conduct.campaign_reading import open_campaign
from inferometer.conduct.comparing import compare_pairs
from inferometer.conduct.folders import Stored, open_runs, stored_in
from inferometer.conduct.remote import local_names
from inferometer.conduct.saving import open_run
from inferometer.conduct.sweep import open_sweep
from inferometer.report import capacity_output
from inferometer.report.html import capacity_page, compare_page, engines_page, run_page, runs_page, sweep_page
from inferometer.report.html.page import Page

_PAGES: dict[Stored, Callable[[str], Page]] = {
    "run": lambda name: run_page.page(*open_run(name)),
    "runs": lambda name: runs_page.runs_page(open_runs([name])),
    "pairs": lambda name: compare_page.compare_page([compare_pairs(Path(name))]),
    "sweep": lambda name: sweep_page.sweep_page(*open_sweep(Path(name))),
    "capacity": lambda name: capacity_page.capacity_page(*capacity_output.read(name)),
    "campaign": lambda name: engines_page.engines_page(open_campaign(Path(name))),
}


def open_page(name: str) -> Page:
    """The page of the folder or URL, or of the runs that a glob finds. Raises UserError when nothing is stored there."""
    names = local_names([name])
    if len(names) > 1:
        return runs_page.runs_page(open_runs(names))
    return _PAGES[stored_in(names)](names[0])
