"""The section of the report about the use of resources."""

from rich.console import RenderableType
from rich.text import Text

from inferometer.analysis.summary import Summary
from inferometer.records import Run


def resources(run: Run, summary: Summary, width: int) -> RenderableType:
    """CPU, memory, GPUs and energy. The summary must have the use of resources."""
    return Text("")
