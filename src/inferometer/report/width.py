"""How wide a report is: 100 columns in a file or a pipe, and in a terminal as far as that has them.

A report for less leaves columns of its tables out, the least telling first, and breaks its lines at words.
"""

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Column, Table

WIDTH = 100
NARROWEST = 70
"""What the tables need without all that they can do without; in less, the terminal breaks the lines itself."""
_ENDLESS = 1000


def columns(file: TextIO | None = None) -> int:
    """Of standard output, or of `file`."""
    out = sys.stdout if file is None else file
    try:
        there = os.get_terminal_size(out.fileno()).columns if out.isatty() else 0
    except (OSError, ValueError):  # no file, or a closed one
        there = 0
    return min(max(there, NARROWEST), WIDTH) if there else WIDTH


def bare(*columns: Column) -> Table:
    """A table of numbers, without lines."""
    return Table(*columns, box=None, padding=(0, 1, 0, 0), show_edge=False, header_style="dim", pad_edge=False)


def fitted(table: Table, width: int, dispensable: Sequence[str]) -> Table:
    """The bare table, without as many of the columns of these names as it takes to fit, in their order; at WIDTH it is left alone."""
    for name in dispensable if width < WIDTH else ():
        if Console(width=_ENDLESS).measure(table).maximum < width:
            break
        kept = [column for column in table.columns if str(column.header).strip() != name]
        table = bare(*(column.copy() for column in kept))
        for cells in zip(*(column.cells for column in kept), strict=True):
            table.add_row(*cells)
    return table
