"""The width of a report: 100 columns in a file or a pipe; in a terminal its width, from 70 to 100.

A narrower report leaves out columns of its tables, the least important first, and breaks its lines between words.
"""

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Column, Table

WIDTH = 100
NARROWEST = 70
"""What the tables need without all optional columns. A terminal that is narrower breaks the lines itself."""
_UNLIMITED = 1000


def columns(file: TextIO | None = None, most: int = WIDTH) -> int:
    """Return the width of a report for standard output, or for `file`: in a terminal `most` at most."""
    out = sys.stdout if file is None else file
    try:
        terminal = os.get_terminal_size(out.fileno()).columns if out.isatty() else 0
    except (OSError, ValueError):  # not a file, or a closed one
        terminal = 0
    return min(max(terminal, NARROWEST), most) if terminal else WIDTH


def bare(*columns: Column) -> Table:
    """A table of numbers without lines."""
    return Table(*columns, box=None, padding=(0, 1, 0, 0), show_edge=False, header_style="dim", pad_edge=False)


def fitted(table: Table, width: int, optional: Sequence[str]) -> Table:
    """Remove optional columns from a bare table, the first of them first, until it fits."""
    for name in optional:
        if Console(width=_UNLIMITED).measure(table).maximum < width:
            break
        kept = [column for column in table.columns if str(column.header).strip() != name]
        table = bare(*(column.copy() for column in kept))
        for cells in zip(*(column.cells for column in kept), strict=True):
            table.add_row(*cells)
    return table
