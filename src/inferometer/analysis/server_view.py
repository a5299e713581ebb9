"""The server's own figures beside the client's: per stage, compared with each other, and what follows from them."""

import msgspec

from inferometer.analysis.throughput import Spans
from inferometer.records import Run
from inferometer.server_metrics.figures import Figures


class Comparison(msgspec.Struct, frozen=True):
    """One quantity as the client and as the server measured it."""

    client: float
    server: float
    unit: str
    """requests, tokens, or s."""


class ServerView(msgspec.Struct, frozen=True):
    """What the server reported about a stage, or about the whole run."""

    figures: Figures
    comparison: dict[str, Comparison] = {}
    """`requests`, `input_tokens`, `output_tokens`, `ttft.mean`, `ttft.p50`, `ttft.p99`, `e2e.mean` ...: those that both know."""
    notes: tuple[str, ...] = ()
    """What a user should know: that the server queued, preempted, or took prompts from its cache."""


class ServerViews(msgspec.Struct, frozen=True):
    whole: ServerView | None = None
    stages: tuple[ServerView | None, ...] = ()


def server_views(run: Run, spans: Spans) -> ServerViews:
    """Return the server's view of the run and of each stage; None if no metrics of it were read."""
    return ServerViews(stages=(None,) * len(spans.windows))
