"""The page of the HTML report for what a folder contains: a run, or what several runs make together."""

from collections.abc import Callable
from pathlib import Path

from inferometer.conduct.comparing import compare_pairs, has_pairs, open_runs, runs_in
from inferometer.conduct.saving import open_run
from inferometer.conduct.sweep import is_sweep, open_sweep
from inferometer.report import capacity_output
from inferometer.report.html import capacity_page, compare_page, run_page, runs_page, sweep_page
from inferometer.report.html.page import Page

_PAGES: tuple[tuple[Callable[[Path], bool], Callable[[Path], Page]], ...] = (
    (is_sweep, lambda folder: sweep_page.sweep_page(*open_sweep(folder))),
    (capacity_output.is_capacity, lambda folder: capacity_page.capacity_page(*capacity_output.read(str(folder)))),
    (has_pairs, lambda folder: compare_page.compare_page([compare_pairs(folder)])),
    (lambda folder: len(runs_in(folder)) > 1, lambda folder: runs_page.runs_page(open_runs([str(folder)]))),
)
"""How a folder is recognised, and how its page is made; the first that applies. A folder that none recognises is a run."""


def open_page(path: str) -> Page:
    """The page of the folder `path`. Raises UserError when nothing is stored there."""
    make = next((make for contains, make in _PAGES if contains(Path(path))), None)
    return make(Path(path)) if make is not None else run_page.page(*open_run(path))
