"""Protocols compared: what the runs over each of them say, cell by cell. The structs are the shape of the JSON file.

A cell is one protocol with one size of tensor, in one run or one a round.

    mean + excess = server + network

server   queue and compute as the server tells them, of each request or as averages (see breakdown.py)
network  the rest: the way there and back, and the server's handling of the protocol
excess   0 unless the server says that it took longer than the client saw; then network is 0
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import __version__
from inferometer.analysis import exact, metrics
from inferometer.analysis.breakdown import rest
from inferometer.analysis.percentiles import Distribution, distribution
from inferometer.analysis.summary import Summary
from inferometer.analysis.window import STEADY
from inferometer.records import Run


class ProtocolVariant(msgspec.Struct, frozen=True):
    """How a protocol is spoken: the config's words for it."""

    label: str
    grpc: bool
    api: str
    stream: bool = False


WAYS = {
    "grpc": ProtocolVariant("gRPC unary", True, "kserve"),
    "grpc-stream": ProtocolVariant("gRPC stream", True, "kserve", stream=True),
    "http": ProtocolVariant("HTTP binary", False, "kserve"),
    "http-json": ProtocolVariant("HTTP JSON", False, "kserve-json"),
}
"""By the names that JSON has for them, in the order of the report."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One protocol with one size of tensor, over all rounds. Seconds, bytes and requests a second; null: not known."""

    protocol: str
    size: int
    verdict: str
    """INVALID where a run was."""
    reasons: tuple[str, ...] = ()
    """What made it INVALID."""
    ok: int
    failed: int
    throughput: float | None
    """Requests a second."""
    e2e: Distribution
    mean: float | None = None
    """Of the requests that `server` and `network` are about: mean + excess = server + network."""
    server: float | None = None
    network: float | None = None
    excess: float = 0.0
    """How much longer the server says that it took than the client saw: its sums count work after an answer has left too."""
    queue: float | None = None
    """`server` is queue and compute."""
    compute: float | None = None
    source: str | None = None
    """Where `server` comes from: `each request` or `server statistics`."""
    no_split: str | None = None
    """Why there is no `server`."""
    strangers: int = 0
    """Requests that the server counted and that were not ours: `server` is an average over them too."""
    bytes_out: float | None = None
    """Of a request, on average."""
    bytes_in: float | None = None
    """Of its answer."""
    runs: tuple[str, ...] = ()
    """Their folders, where they are kept."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = 1
    inferometer: str = __version__
    started: str = ""
    model: str
    server: str = ""
    """What it calls itself, with its version."""
    http: str | None = None
    grpc: str | None = None
    concurrency: int
    duration: float | None = None
    requests: int | None = None
    rounds: int = 1
    interrupted: bool = False
    """Ended before all was measured: some cells are not there, or have fewer rounds."""
    cells: tuple[Cell, ...]
    """By size, then in the order of WAYS."""

    @property
    def is_valid(self) -> bool:
        return not self.interrupted and all(cell.verdict == "VALID" for cell in self.cells)


Measured = tuple[Run, Summary]


def cell_of(way: str, size: int, measured: Sequence[Measured], kept: bool) -> Cell:
    """The rounds of a cell as one: every request counts the same, whichever round it was in."""
    counted = [
        run.records.rows[(run.records.phase == STEADY) & (run.records.rows["failure"] == 0)] for run, _ in measured
    ]
    split = _split([summary for _, summary in measured])
    return Cell(
        protocol=way,
        size=size,
        verdict="VALID" if all(summary.verdict == "VALID" for _, summary in measured) else "INVALID",
        reasons=tuple(dict.fromkeys(reason for _, summary in measured for reason in _reasons(summary))),
        ok=sum(summary.counts.ok for _, summary in measured),
        failed=sum(summary.counts.failed for _, summary in measured),
        throughput=_rate([summary for _, summary in measured]),
        e2e=distribution(np.concatenate([metrics.e2e(rows) for rows in counted]), "s"),
        bytes_out=_mean([rows["bytes_out"] for rows in counted]),
        bytes_in=_mean([rows["bytes_in"] for rows in counted]),
        runs=tuple(str(run.folder) for run, _ in measured) if kept else (),
        **split,
    )


def _reasons(summary: Summary) -> list[str]:
    """What made it INVALID."""
    if summary.window.requests["warmup"] and not summary.window.requests["steady"]:
        return ["too short: there was time for each user's first request only, which does not count. Give it longer."]
    return [f"{check.name}: {check.message}" for check in summary.checks if check.status == "fail"]


def _rate(summaries: Sequence[Summary]) -> float | None:
    known = [(one.throughput.requests, one.window.span) for one in summaries if one.throughput.requests is not None]
    span = math.fsum(seconds for _, seconds in known)
    return math.fsum(rate * seconds for rate, seconds in known) / span if span else None


def _mean(columns: Sequence[NDArray[Any]]) -> float | None:
    together = np.concatenate(columns)
    return exact.mean(together) if len(together) else None


def _split(found: Sequence[Summary]) -> dict[str, Any]:
    """Server and network; nothing but the reason unless all rounds know it, and from the same source."""
    known = [one.breakdown for one in found if one.breakdown is not None]
    if len(known) < len(found):
        return {"no_split": next(one.no_breakdown for one in found if one.breakdown is None)}
    if len({one.source for one in known}) != 1:
        return {"no_split": "the server told it for each request in some rounds only"}
    requests = sum(one.requests for one in known)

    def mean(name: str) -> float:
        return math.fsum(getattr(one, name) * one.requests for one in known) / requests

    server = mean("queue") + mean("compute")
    network, excess = rest(mean("e2e") - server)
    return {
        "mean": mean("e2e"),
        "server": server,
        "network": network,
        "excess": excess,
        "queue": mean("queue"),
        "compute": mean("compute"),
        "source": known[0].source,
        "strangers": sum(max((one.counted or one.requests) - one.requests, 0) for one in known),
    }
