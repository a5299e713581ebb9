"""The section of the report about the server's own metrics."""

from rich.console import RenderableType
from rich.text import Text

from inferometer.analysis.summary import Summary
from inferometer.records import Run


def server(run: Run, summary: Summary, width: int) -> RenderableType:
    """The server's figures beside the client's. The summary must have a server's view."""
    return Text("")
