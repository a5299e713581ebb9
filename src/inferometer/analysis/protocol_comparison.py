"""Compare protocols: combine the runs over each of them into cells. The structs define the layout of the JSON file.

A cell is one protocol with one tensor size, measured in one run or in one run per round.

    mean + excess = server + overhead

server    queue and compute as the server reports them, per request or as averages (see breakdown.py)
overhead  the remainder: transfer in both directions, and the server's protocol handling
excess    0 unless the server reports more time than the client saw; then overhead is 0

If the server reports how long it had each request, overhead - excess = protocol_time + network.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import __version__
from inferometer.analysis import exact, metrics
from inferometer.analysis.blocks import place
from inferometer.analysis.breakdown import rest
from inferometer.analysis.percentiles import Distribution, distribution
from inferometer.analysis.summary import Measured, Summary
from inferometer.analysis.window import STEADY
from inferometer.records import Columns


class ProtocolVariant(msgspec.Struct, frozen=True):
    """One protocol, and the config values that select it."""

    label: str
    grpc: bool
    api: str
    stream: bool = False


PROTOCOLS = {
    "grpc": ProtocolVariant("gRPC unary", True, "kserve"),
    "grpc-stream": ProtocolVariant("gRPC stream", True, "kserve", stream=True),
    "http": ProtocolVariant("HTTP binary", False, "kserve"),
    "http-json": ProtocolVariant("HTTP JSON", False, "kserve-json"),
}
"""Protocols by their names in JSON, in the order of the report."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One protocol with one size of the tensors in a request, over all rounds, in seconds, bytes and requests per second; null if not known."""

    protocol: str
    size: int
    verdict: str
    """INVALID if one of the runs is."""
    reasons: tuple[str, ...] = ()
    """What made it INVALID."""
    ok: int
    failed: int
    throughput: float | None
    """Requests per second."""
    e2e: Distribution
    mean: float | None = None
    """Mean end-to-end time of the requests that `server` and `overhead` cover: mean + excess = server + overhead."""
    server: float | None = None
    overhead: float | None = None
    protocol_time: float | None = None
    """The server's time outside of queue and compute; null if it does not report how long it had each request."""
    network: float | None = None
    """The time outside of the server; null likewise."""
    excess: float = 0.0
    """How much more time the server reports than the client saw: its totals include work after a response was sent."""
    queue: float | None = None
    """`server` is the sum of queue and compute."""
    compute: float | None = None
    source: str | None = None
    """Where `server` comes from: `each request` or `server statistics`."""
    no_split: str | None = None
    """Why `server` is null."""
    strangers: int = 0
    """Requests of other clients that the server counted: `server` is an average that includes them."""
    bytes_out: float | None = None
    """Mean bytes per request."""
    bytes_in: float | None = None
    """Mean bytes per response."""
    runs: tuple[str, ...] = ()
    """Folders of the runs, if they are kept."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = 1
    inferometer: str = __version__
    started: str = ""
    model: str
    server: str = ""
    """Name and version that the server reports."""
    http: str | None = None
    grpc: str | None = None
    concurrency: int
    duration: float | None = None
    requests: int | None = None
    rounds: int = 1
    interrupted: bool = False
    """The comparison ended early: some cells are missing, or have fewer rounds."""
    left_out: tuple[str, ...] = ()
    """Why a protocol was not measured although its port was given."""
    cells: tuple[Cell, ...]
    """By size, then in the order of PROTOCOLS."""

    @property
    def is_valid(self) -> bool:
        return not self.interrupted and all(cell.verdict == "VALID" for cell in self.cells)


def cell_of(protocol: str, size: int, measured: Sequence[Measured], kept: bool) -> Cell:
    """Combine the rounds of a cell. Every request counts the same, whichever round it was in."""
    counted = [
        run.records.rows[(run.records.phase == STEADY) & (run.records.rows["failure"] == 0)] for run, _ in measured
    ]
    split = _split([summary for _, summary in measured])
    return Cell(
        protocol=protocol,
        size=size,
        verdict="VALID" if all(summary.verdict == "VALID" for _, summary in measured) else "INVALID",
        reasons=tuple(dict.fromkeys(reason for _, summary in measured for reason in _reasons(summary))),
        ok=sum(summary.counts.ok for _, summary in measured),
        failed=sum(summary.counts.failed for _, summary in measured),
        throughput=_rate([summary for _, summary in measured]),
        e2e=_e2e(counted),
        bytes_out=_mean([rows["bytes_out"] for rows in counted]),
        bytes_in=_mean([rows["bytes_in"] for rows in counted]),
        runs=tuple(str(run.folder) for run, _ in measured) if kept else (),
        **split,
    )


def _e2e(rounds: Sequence[Columns]) -> Distribution:
    """End-to-end times of all rounds; for the confidence intervals, as if each round followed the one before it."""
    instants, at = [], 0
    for rows in rounds:
        if len(rows):
            instants.append(at + rows["intended"] - rows["intended"].min())
            at = int(instants[-1].max())
    known = np.concatenate([np.zeros(0, np.int64), *instants])
    return distribution(np.concatenate([metrics.e2e(rows) for rows in rounds]), "s", placed=place(known, known[:0]))


def _reasons(summary: Summary) -> list[str]:
    """What made a run INVALID."""
    if summary.window.requests["warmup"] and not summary.window.requests["steady"]:
        return [
            "too short: there was only time for each user's first request, which does not count. Give it more time."
        ]
    return [f"{check.name}: {check.message}" for check in summary.checks if check.status == "fail"]


def _rate(summaries: Sequence[Summary]) -> float | None:
    rates = [one.throughput for one in summaries]
    known = [(one.requests, one.span) for one in rates if one.requests is not None and one.span is not None]
    span = math.fsum(seconds for _, seconds in known)
    return math.fsum(rate * seconds for rate, seconds in known) / span if span else None


def _mean(columns: Sequence[NDArray[Any]]) -> float | None:
    together = np.concatenate(columns)
    return exact.mean(together) if len(together) else None


def _split(summaries: Sequence[Summary]) -> dict[str, Any]:
    """The server's time and the rest, if all rounds know them from the same source; otherwise only the reason."""
    known = [one.breakdown for one in summaries if one.breakdown is not None]
    if len(known) < len(summaries):
        return {"no_split": next(one.no_breakdown for one in summaries if one.breakdown is None)}
    if len({one.source for one in known}) != 1:
        return {"no_split": "the server reported times per request in only some of the rounds"}
    requests = sum(one.requests for one in known)

    def mean(name: str) -> float:
        return math.fsum((getattr(one, name) or 0.0) * one.requests for one in known) / requests

    has_parts = any(one.reported for one in known)
    server = mean("queue") + mean("compute") if has_parts else mean("protocol")
    overhead, excess = rest(mean("e2e") - server)
    is_full = has_parts and all(one.network is not None for one in known)
    return {
        "mean": mean("e2e"),
        "server": server,
        "overhead": overhead,
        "protocol_time": mean("protocol") if is_full else None,
        "network": mean("client") + mean("network") if is_full else None,
        "excess": excess,
        "queue": mean("queue"),
        "compute": mean("compute"),
        "source": known[0].source,
        "strangers": sum(max((one.counted or one.requests) - one.requests, 0) for one in known),
    }
