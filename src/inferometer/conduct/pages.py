"""The page of the HTML report for what is stored in a folder: a run, or what several runs make together."""

from collections.abc import Callable
from pathlib import Path

from inferometer.conduct.saving import open_run
from inferometer.report.html import run_page
from inferometer.report.html.page import Page

STORED: dict[str, Callable[[Path], Page]] = {}
"""Folders of several runs: the file that marks the folder, and how to make its page."""


def open_page(path: str) -> Page:
    """The page of the folder `path`. Raises UserError when nothing is stored there."""
    for file, make in STORED.items():
        if (Path(path) / file).exists():
            return make(Path(path))
    return run_page.page(*open_run(path))
