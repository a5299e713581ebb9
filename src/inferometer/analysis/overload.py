"""Did the server keep up? Detects an open loop that offers more than the server completes.

The number of requests in flight, N(t) = arrived - ended, is read at 21 instants of a stage with a constant rate. If the server
keeps up, it moves around a level; if not, it grows by the difference of the two rates for as long as requests are sent, and
the latencies with it. A request arrives when the plan intends it: one that waits at the concurrency cap of the client counts.
One that was refused, or failed, has ended.

The first instant is when the pipeline is full: until the first responses arrive, N(t) grows on any server.

The later turns of a session are sent when the server is done with the turn before, so they never outrun it. Of sessions, N(t) is
the number in progress: those that arrived (their first turn) without those that ended (their last turn). It is read until the last
session arrives, and the pipeline is full when the first sessions have ended.
"""

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.records import MISSING, Columns, CutShort, StagePlan
from inferometer.units import NS, format_seconds

CONSTANT_RATE = ("constant", "poisson", "gamma")
"""Types of stages whose rate does not change."""
EARLY = 0.1
"""The first tenth of the requests shows how long the pipeline takes to fill."""
FEWEST = 20
"""With fewer arrivals the growth of the number in flight says nothing."""
LIMIT = 0.02
_FILLED = 0.9
"""The percentile of their time; with the median, the pipeline would not be full when times vary."""
_HALF = 0.501
"""The largest share of a stage that the pipeline may take to fill; a little more than half, so that rounding does not decide."""
_STEPS = 20
_T = 1.73
"""The 95th percentile of Student's t with 19 degrees of freedom."""
_SETTLING = 0.1
"""Share of a stage that is not looked at, even if the pipeline fills faster."""
FLOOD, _FLOODED, _QUICK = 0.01, 0.5, 0.2
"""Far above its capacity, a server is so late with the first tenth of the requests that the stage looks too short. It is overloaded if
the first hundredth took less than a fifth of the stage, and the number in flight then grew by half of the arrivals. Sessions have
from one to many turns, so a few short ones come first by chance: they are not judged by this."""
_ENOUGH, _FILLING = 4, 0.3
"""A stage should last four times the p90 of the end-to-end time. In a shorter one, the requests that take even longer may still be
filling the pipeline, so growth by up to this share of the arrivals says nothing. A queue that makes responses take that long grows
by more."""


class Overload(msgspec.Struct, frozen=True):
    """Whether the number of requests in flight grew throughout a stage."""

    status: Literal["steady", "overloaded", "too_short", "not_applicable"]
    reason: str = ""
    """Why the stage is too short to tell, or why the test does not apply."""
    growth: float | None = None
    """By how many requests per second the number in flight grew."""
    share: float | None = None
    """By what share of the arrivals it grew."""
    capacity: float | None = None
    """Overloaded: requests completed per second, which is what the server can do."""
    needs: float | None = None
    """Too short: how long the stage should last, in seconds."""
    cut_short: CutShort | None = None
    """Set if the stage was ended early because it was overloaded."""


def overload(rows: Columns, plan: StagePlan, limit: float = LIMIT, t: float = _T) -> Overload:
    """Test all requests of a stage, whether or not they are in the window. `t` is what Student's t of the increments has to exceed."""
    if not plan.open:
        return Overload("not_applicable", "closed loop")
    if plan.type not in CONSTANT_RATE:
        return Overload("not_applicable", f"the rate of the stage is not constant ({plan.type})")
    units = rows if plan.users else by_session(rows)
    word = "request" if units is rows else "session"
    count = len(units)
    if count < FEWEST:
        return _few(units, plan, word)
    intended = units["intended"]
    first, last = int(intended.min()), int(intended.max())
    length = stage_length(first, last, count)
    fill = fill_time(units)
    if fill is None or not length:
        return Overload("not_applicable", "no request was sent" if fill is None else f"all {word}s arrived at once")
    start, is_short = fill, fill > _HALF * length
    if is_short and units is rows:
        start, limit = min(fill_time(units, FLOOD) or fill, fill), max(limit, _FLOODED)
    if not is_short or start <= _QUICK * length:
        begin = first + max(round(_SETTLING * length), start)
        result = _drift(intended, units["done"], rows["done"][rows["failure"] == 0], begin, last, limit, t)
        if result.status == "overloaded":
            is_short = _ENOUGH * start > length and (result.share or 0.0) <= _FILLING
        if not is_short or (result.status == "overloaded" and start < fill):
            return result
    return _too_short(fill, length, word)


def overload_of_cut(rows: Columns, plan: StagePlan, cut: CutShort) -> Overload:
    """Test a stage that was cut short. It was found to be overloaded by a stricter test while it was in progress, so that any growth
    suffices if the last requests, after that test, lower the growth."""
    found = overload(rows, plan)
    if found.status != "overloaded":
        lenient = overload(rows, plan, 0.0, 0.0)
        found = lenient if lenient.status == "overloaded" else found
    return msgspec.structs.replace(found, cut_short=cut)


def _few(units: Columns, plan: StagePlan, word: str) -> Overload:
    """Compare the p90 of all with the planned length: a few arrivals do not tell how long the stage lasted."""
    count = len(units)
    fill = fill_time(units, 1.0)
    length = plan.duration or (plan.requests / plan.rate if plan.rate else 0.0)
    if count > 1 and fill is not None and length and fill > _HALF * length * NS:
        return _too_short(fill, length * NS, word)
    return Overload("not_applicable", f"{count} {word}s are too few to tell, {FEWEST} are needed")


def _too_short(fill: int, length: float, word: str) -> Overload:
    unit = "response" if word == "request" else word
    reason = f"a {unit} takes {format_seconds(fill / NS)}, and the stage lasts {format_seconds(length / NS)}"
    return Overload("too_short", reason, needs=_ENOUGH * fill / NS)


def _drift(
    intended: NDArray[np.int64],
    done: NDArray[np.int64],
    responses: NDArray[np.int64],
    start: int,
    end: int,
    limit: float,
    t: float,
) -> Overload:
    """Whether the number in flight grew from `start` to `end`, by its increments in 20 equal stretches of time."""
    edges = np.linspace(start, end, _STEPS + 1).astype(np.int64)
    arrived = _between(intended, edges)
    increments = [a - d for a, d in zip(arrived, _between(done, edges), strict=True)]
    growth, arrivals, seconds = sum(increments), sum(arrived), (end - start) / NS
    if not arrivals:
        return Overload("not_applicable", "no request arrived after the first responses")
    squares = sum((_STEPS * step - growth) ** 2 for step in increments)  # exact: whole numbers
    error = math.sqrt(squares / (_STEPS - 1)) / _STEPS / math.sqrt(_STEPS)
    is_drift = growth > limit * arrivals and growth / _STEPS > t * error
    return Overload(
        "overloaded" if is_drift else "steady",
        growth=growth / seconds,
        share=growth / arrivals,
        capacity=sum(_between(responses, edges)) / seconds if is_drift else None,
    )


def _between(instants: NDArray[np.int64], edges: NDArray[np.int64]) -> list[int]:
    """How many of the instants are in each stretch, which includes its end and not its start. One that is MISSING is in none."""
    counts: list[int] = np.bincount(np.searchsorted(edges, instants), minlength=len(edges) + 1).tolist()
    return counts[1 : len(edges)]


def by_session(rows: Columns) -> Columns:
    """One row for each session, from its first turn to the end of its last; `rows` itself if no request is a later turn.

    A request outside of sessions counts as one. The rows have only the columns that `fill_time` needs.
    """
    first = np.flatnonzero(rows["turn"] <= 0)
    if len(first) == len(rows):
        return rows
    session = rows["session"]
    _, group = np.unique(np.where(session < 0, rows["id"], session), return_inverse=True)
    ended = np.full(len(rows), MISSING)
    np.maximum.at(ended, group, np.where(rows["done"] == MISSING, np.iinfo(np.int64).max, rows["done"]))
    ended[ended == np.iinfo(np.int64).max] = MISSING
    columns = {name: rows[name][first] for name in ("intended", "sent", "open_loop")}
    return Columns(len(first), columns | {"done": ended[group[first]]})


def stage_length(first: int, last: int, count: int) -> float:
    """Length of a stage with `count` arrivals, of which the first and the last are known: each has a gap of its own."""
    return (last - first) * count / (count - 1) if count > 1 else 0.0


def fill_time(rows: Columns, share: float = EARLY) -> int | None:
    """How long the pipeline takes to fill: the p90 of the end-to-end time of the first requests sent, a share of all; in ns.

    None if no request was sent.
    """
    sent = rows["sent"]
    known = np.flatnonzero((sent != MISSING) & (rows["done"] != MISSING))
    if not len(known):
        return None
    count = min(max(round(share * len(known)), 1), len(known))
    early = known[np.argpartition(sent[known], count - 1)[:count]]
    start = np.where(rows["open_loop"][early] != 0, rows["intended"][early], sent[early])
    times = rows["done"][early] - start
    index = int(_FILLED * (count - 1))
    return int(np.partition(times, index)[index])
