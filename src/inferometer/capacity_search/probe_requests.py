"""The requests of a probe, also those without an end: in flight when it is looked at, or cancelled when it ended."""

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.metrics import start
from inferometer.capacity_search.objectives import Objectives
from inferometer.records import CANCELLED, MISSING, ROW, Columns, Failure
from inferometer.units import NS

_TOKENS = 8
"""Chunks after which the time per token of a response in progress counts."""

Rows = NDArray[np.void]


def settled(
    rows: Columns, failures: tuple[Failure, ...], objectives: Objectives
) -> tuple[Columns, tuple[Failure, ...]]:
    """The requests that were cancelled at the end as what they had shown by then: a response in progress that is fast enough, or one
    that is too late. The others remain cancelled."""
    own = [number for number, failure in enumerate(failures, 1) if failure.code == CANCELLED]
    cancelled = np.isin(rows["failure"], own) & (rows["sent"] != MISSING)
    if not cancelled.any():
        return rows, failures
    streaming = cancelled & (rows["first_token"] != MISSING) & (rows["chunk_count"] >= _TOKENS)
    if objectives.needs_ends:
        streaming[:] = False
    waited = rows["done"] - start(rows)
    waits = np.ones(len(rows), np.bool_) if objectives.needs_ends else rows["first_token"] == MISSING
    late = cancelled & ~streaming & waits & (waited > objectives.patience * NS) & (objectives.patience > 0)
    changed = np.where(streaming, 0, np.where(late, len(failures) + 1, rows["failure"]))
    columns = {name: rows[name] for name in ROW.names or ()} | {"failure": changed.astype(ROW["failure"])}
    return Columns(len(rows), columns), (*failures, Failure(code="late", message="no response within the limit"))


def with_in_flight(rows: Rows, arrived: int, elapsed: int) -> tuple[Columns, int]:
    """Add the requests of an open loop that are still in flight; return all, and until when nothing is missing.

    Requests have ids in the order of their intended instants, so the missing ids are those in flight. The instants between two
    known ones are interpolated.
    """
    rows = rows[np.argsort(rows["id"], kind="stable")]
    ids = rows["id"]
    count = max(arrived, int(ids[-1]) + 1 if len(ids) else 0)
    missing = np.setdiff1d(np.arange(count), ids)
    known = (np.concatenate([[-1], ids, [count]]), np.concatenate([[0], rows["intended"], [elapsed]]))
    waiting = np.zeros(len(missing), ROW)
    for name in ("sent", "first_byte", "first_token", "first_content", "last_token", "done"):
        waiting[name] = MISSING
    waiting["id"], waiting["open_loop"], waiting["turn"], waiting["session"] = missing, 1, -1, -1
    waiting["intended"] = np.interp(missing, *known).astype(np.int64)
    until = int(waiting["intended"][0]) if len(missing) else elapsed
    if len(missing) and missing[0] > 0:  # interpolated: the ones before it are complete
        until = int(rows["intended"][np.searchsorted(ids, missing[0]) - 1]) + 1
    return Columns.of(np.concatenate([rows, waiting])), until


def longest_first(rows: Rows, elapsed: int) -> tuple[Columns, int]:
    """The requests of a closed loop, and until when hardly any is missing: none has taken longer than the longest so far."""
    known = rows[(rows["done"] != MISSING) & (rows["sent"] != MISSING)]
    longest = int((known["done"] - known["sent"]).max()) if len(known) else elapsed
    return Columns.of(rows), max(elapsed - longest, 0)
