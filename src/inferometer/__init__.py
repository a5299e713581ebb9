"""Inferometer: the instrument that says how fast a model server really is.

From Python (docs/reference/python.md):

    import inferometer

    run = inferometer.run("http://127.0.0.1:8000", {"load.rate": 20, "load.duration": "30s"})
    run.valid, run.metric("ttft", "p99"), run.to_pandas()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferometer.analysis.output_comparison import OutputDifference as OutputDifference
    from inferometer.analysis.output_comparison import compare_outputs as compare_outputs
    from inferometer.analysis.summary import StageSummary as StageSummary
    from inferometer.analysis.summary import Summary as Summary
    from inferometer.dummies import dummy_inputs as dummy_inputs
    from inferometer.errors import UserError as Error
    from inferometer.public.client import Client as Client
    from inferometer.public.comparisons import Comparison as Comparison
    from inferometer.public.comparisons import compare as compare
    from inferometer.public.generated import Text as Text
    from inferometer.public.generated import TextStream as TextStream
    from inferometer.public.runs import Run as Run
    from inferometer.public.runs import open as open
    from inferometer.public.runs import run as run
    from inferometer.public.searches import Capacity as Capacity
    from inferometer.public.searches import capacity as capacity
    from inferometer.public.timed import Timed as Timed
    from inferometer.public.timed import timed as timed

__version__ = "0.1.0"

_HOMES = {
    "Capacity": "inferometer.public.searches",
    "Client": "inferometer.public.client",
    "Comparison": "inferometer.public.comparisons",
    "Error": "inferometer.errors:UserError",
    "OutputDifference": "inferometer.analysis.output_comparison",
    "Run": "inferometer.public.runs",
    "StageSummary": "inferometer.analysis.summary",
    "Summary": "inferometer.analysis.summary",
    "Text": "inferometer.public.generated",
    "TextStream": "inferometer.public.generated",
    "Timed": "inferometer.public.timed",
    "capacity": "inferometer.public.searches",
    "compare": "inferometer.public.comparisons",
    "compare_outputs": "inferometer.analysis.output_comparison",
    "dummy_inputs": "inferometer.dummies",
    "open": "inferometer.public.runs",
    "run": "inferometer.public.runs",
    "timed": "inferometer.public.timed",
}
"""The module of each public name, and the name that it has there if that is another one."""

__all__ = [
    "Capacity",
    "Client",
    "Comparison",
    "Error",
    "OutputDifference",
    "Run",
    "StageSummary",
    "Summary",
    "Text",
    "TextStream",
    "Timed",
    "__version__",
    "capacity",
    "compare",
    "compare_outputs",
    "dummy_inputs",
    "open",
    "run",
    "timed",
]


def __getattr__(name: str) -> Any:
    """Import what the package offers to Python code when it is first used, so that importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _HOMES[name].partition(":")
    found = getattr(import_module(module), there or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
