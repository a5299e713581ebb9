"""What became of sessions: how long they took, how many turns and tokens they had, what the server's cache knew of their prompts.

A session belongs to the phase of its first turn. Its statistics are those of sessions that succeeded: every planned turn was sent and
got its response. A session with a failed turn counts as failed; one that the end of the stage or of the run cut off is only counted.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import blocks
from inferometer.analysis.metrics import start, ttft
from inferometer.analysis.percentiles import Distribution, distribution
from inferometer.analysis.window import STEADY
from inferometer.records import MISSING, Columns, Run
from inferometer.units import NS

Mask = NDArray[np.bool_]
Sums = Mapping[str, NDArray[np.int64]]

_MOST_TURNS = 64
"""Turns that have a time to first token of their own."""

SESSION_METRICS: dict[str, tuple[str, str, Callable[[Sums], NDArray[np.float64]]]] = {
    "duration": (
        "s",
        "from the first turn's intended send time (closed loop: send) to the end of the last response, with all think time",
        lambda sums: (sums["done"] - sums["start"]) / NS,
    ),
    "turns": ("turns", "requests of the session", lambda sums: sums["turns"].astype(np.float64)),
    "input_tokens": ("tokens", "prompt tokens of all its turns", lambda sums: _known(sums, "n_in")),
    "output_tokens": ("tokens", "output tokens of all its turns", lambda sums: _known(sums, "n_out")),
    "cached_tokens": (
        "tokens",
        "prompt tokens that the server took from its cache",
        lambda sums: _known(sums, "cached"),
    ),
    "cached_share": (
        "share",
        "cached_tokens / input_tokens",
        lambda sums: _known(sums, "cached") / np.maximum(_known(sums, "n_in"), 1),
    ),
}
"""The unit, the definition and the computation of each metric. A value that is not known is NaN, and left out."""
TTFT_BY_TURN = "time to first token of the nth turn of sessions, from 1, as ttft"


class SessionSummary(msgspec.Struct, frozen=True):
    ok: int
    failed: int
    """Sessions with a turn that failed."""
    cut: int
    """Sessions that the end of the stage or of the run cut off between two turns."""
    metrics: dict[str, Distribution]
    ttft_by_turn: dict[str, Distribution]
    """By the number of the turn, from 1; at most the first 64."""


def summarise(run: Run, mask: Mask) -> SessionSummary | None:
    """Summarise the sessions of the rows of `mask`, as far as they are in the window; None if there are none."""
    everything = run.records.rows
    chosen = mask & (everything["session"] >= 0)
    if not (everything["turn"][chosen] > 0).any() and not (everything["turns"][chosen] > 1).any():
        return None
    rows = everything[chosen]
    sums = _sums(rows, run.records.phase[chosen])
    is_steady = sums["phase"] == STEADY
    is_failed = is_steady & (sums["failed"] > 0)
    is_ok = is_steady & ~is_failed & (sums["turns"] == sums["planned"])
    own = {name: values[is_ok] for name, values in sums.items()}
    return SessionSummary(
        ok=int(is_ok.sum()),
        failed=int(is_failed.sum()),
        cut=int((is_steady & ~is_failed & ~is_ok).sum()),
        metrics={name: _distribution(of(own), own["start"], unit) for name, (unit, _, of) in SESSION_METRICS.items()},
        ttft_by_turn=_by_turn(everything[mask & (run.records.phase == STEADY) & (everything["failure"] == 0)]),
    )


def definitions() -> dict[str, str]:
    named = {f"sessions.{name}": definition for name, (_, definition, _) in SESSION_METRICS.items()}
    return named | {"sessions.ttft_by_turn": TTFT_BY_TURN}


def _sums(rows: Columns, phase: NDArray[np.int8]) -> dict[str, NDArray[np.int64]]:
    """One value per session: sums over its turns, and what its first and last turn have."""
    order = np.lexsort((rows["turn"], rows["session"]))
    session = rows["session"][order]
    first = np.flatnonzero(np.append(True, session[1:] != session[:-1]))

    def total(column: NDArray[Any]) -> NDArray[np.int64]:
        return np.add.reduceat(column[order].astype(np.int64), first)

    done = np.where(rows["done"] == MISSING, rows["intended"], rows["done"])
    sums = {name: total(np.maximum(rows[name], 0)) for name in ("n_in", "n_out", "cached")}
    sums |= {f"unknown {name}": total(rows[name] < 0) for name in ("n_in", "n_out", "cached")}
    return sums | {
        "start": start(rows)[order][first],
        "done": np.maximum.reduceat(done[order], first),
        "turns": total(np.ones(len(rows), np.int64)),
        "planned": np.maximum.reduceat(rows["turns"][order], first).astype(np.int64),
        "failed": total(rows["failure"] > 0),
        "phase": phase[order][first].astype(np.int64),
    }


def _known(sums: Sums, name: str) -> NDArray[np.float64]:
    return np.where(sums[f"unknown {name}"] > 0, np.nan, sums[name])


def _by_turn(rows: Columns) -> dict[str, Distribution]:
    values, turns = ttft(rows), rows["turn"]
    return {
        str(turn + 1): _distribution(values[turns == turn], rows["intended"][turns == turn], "s")
        for turn in range(min(int(turns.max(initial=-1)) + 1, _MOST_TURNS))
        if not np.isnan(values[turns == turn]).all()
    }


def _distribution(values: NDArray[np.float64], at: NDArray[np.int64], unit: str) -> Distribution:
    """Statistics of the known values, each of which lies in the block of time of its instant."""
    known = ~np.isnan(values)
    values, at = values[known], at[known]
    if not len(values):
        return Distribution(unit=unit, count=0)
    first, last = int(at.min()), int(at.max())
    indices = blocks.index(at, first, last)
    return distribution(values, unit, placed=blocks.Placed(indices, indices[:0], (last - first) / NS))
