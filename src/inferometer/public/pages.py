"""HTML pages: written to files, and shown inside a notebook.

A notebook puts what `_repr_html_` returns into its own document. The page has a style and a script of its own, so it goes into a
frame: neither can change the notebook, nor be changed by it. The frame is sandboxed, and the page loads nothing.
"""

import html
from os import PathLike
from pathlib import Path

from inferometer.errors import UserError
from inferometer.replacing import replaced

_HEIGHT = 680


def in_frame(page: str, title: str) -> str:
    """The page as an element that can be put into another document."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(title)}" sandbox="allow-scripts allow-popups" '
        f'style="width: 100%; height: {_HEIGHT}px; border: 0; resize: vertical; overflow: auto"></iframe>'
    )


def written(page: str, path: str | PathLike[str] | None) -> str:
    """Write the page if there is a path. Return the page."""
    if path is not None:
        try:
            with replaced(Path(path)) as partial:
                partial.write_text(page, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}", "give a path that can be written") from None
    return page
