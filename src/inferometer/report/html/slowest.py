"""The slowest requests, one timeline each: waiting to be sent, the first token, and every chunk after it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.metrics import e2e, start
from inferometer.analysis.summary import Summary
from inferometer.analysis.window import STEADY
from inferometer.records import MISSING, Run
from inferometer.report import formatting
from inferometer.report.document import Section
from inferometer.report.html import page
from inferometer.report.html.parts import Part
from inferometer.report.tail import why_slow
from inferometer.units import NS

_COUNT = 10
_LONG = 2.0
"""Seconds from which on the axis is in seconds."""
_CHUNKS = 400
"""Chunks per request at most: of more, those before the longest gaps are kept."""
_STALL = 4.0
"""A gap counts as a stall if it is this many times as long as the median of its response."""
_KEYS = {
    "wait": "waiting to be sent",
    "first": "until the first token",
    "decode": "streaming (a line per chunk)",
    "stall": f"gap of over {_STALL:g} times the median",
    "queue": "queue",
    "compute": "compute",
    "protocol": "the server outside of both",
    "other": "network and the rest",
}


def slowest(run: Run, summary: Summary, stages: list[Part]) -> Section:
    """The ten successful requests with the longest end-to-end time, and what makes the tail slow."""
    rows = run.records.rows
    chosen = np.flatnonzero((run.records.phase == STEADY) & (rows["failure"] == 0) & (rows["sent"] != MISSING))
    if not len(chosen):
        return Section("slowest", "Slowest", [])
    took = e2e(rows[chosen])
    order = np.lexsort((rows["id"][chosen], -took))[:_COUNT]
    picked = chosen[order]
    own = np.asarray(rows[picked])
    arrivals = _arrivals(run, own["chunk_start"], own["chunk_count"])
    names = {stage.number: stage.name for stage in stages}
    unit, length = ("s", NS) if took[order[0]] >= _LONG else ("ms", NS // 1000)
    lines = [
        _line(run, row, int(begin), arrival, names if len(stages) > 1 else {}, length)
        for row, begin, arrival in zip(own, start(rows[picked]).tolist(), arrivals, strict=True)
    ]
    used = {style for line in lines for _, _, style in line["parts"]}
    data = {
        "kind": "rows",
        "x": {"label": f"{unit} since the request was due", "unit": unit},
        "rows": lines,
        "keys": [[name, style] for style, name in _KEYS.items() if style in used],
    }
    title = "Where the time of the slowest requests went."
    chart = page.chart(title, "Drag to zoom; hover to read single gaps.", data)
    return Section("slowest", "Slowest", [chart, *why_slow(summary).blocks])


def _arrivals(run: Run, starts: NDArray[np.int64], counts: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """The arrivals of the chunks of some requests, in one pass over all chunks."""
    found: list[list[NDArray[np.int64]]] = [[] for _ in starts]
    position = 0
    for piece in run.chunks():
        end = position + len(piece.arrival)
        for into, first, count in zip(found, starts.tolist(), counts.tolist(), strict=True):
            begin, stop = max(first, position), min(first + count, end)
            if begin < stop:
                into.append(piece.arrival[begin - position : stop - position].copy())
        position = end
    return [np.concatenate(parts) if parts else np.zeros(0, np.int64) for parts in found]


def _line(
    run: Run, row: np.void, begin: int, arrival: NDArray[np.int64], stages: dict[int, str], length: int
) -> dict[str, Any]:
    """The row of a request; `length` is that of the axis's unit in ns."""
    sent, done = (int(row[name]) - begin for name in ("sent", "done"))
    offsets = arrival - begin
    parts = [(0, sent, "wait")] if sent > 0 else []
    if len(offsets):
        parts += [(sent, int(offsets[0]), "first"), (int(offsets[0]), done, "decode")]
        gaps = np.diff(offsets)
        stalls = np.flatnonzero(gaps > _STALL * np.median(gaps)) if len(gaps) > 2 else gaps[:0]
        parts += [(int(offsets[at]), int(offsets[at + 1]), "stall") for at in stalls[:_CHUNKS].tolist()]
    elif row["queue"] >= 0 or row["compute"] >= 0:
        parts += _server_parts(row, sent, done)
    else:
        parts.append((sent, done, "other"))
    kept = _kept(offsets)
    return {
        "label": _label(run, row, done, stages),
        "end": _units(done, length),
        "parts": [[_units(from_, length), _units(to, length), style] for from_, to, style in parts if to > from_],
        "tokens": [_units(at, length) for at in offsets[kept].tolist()],
        "numbers": (kept + 1).tolist(),
    }


def _server_parts(row: np.void, sent: int, done: int) -> list[tuple[int, int, str]]:
    """Queue and compute in the middle. What is before and after them is not known, so that half of it is drawn on each side."""
    queue, compute, total = (max(int(row[name]), 0) for name in ("queue", "compute", "server_total"))
    protocol = max(total - queue - compute, 0) // 2
    other = max((done - sent - queue - compute) // 2 - protocol, 0)
    lengths = [(other, "other"), (protocol, "protocol"), (queue, "queue"), (compute, "compute"), (protocol, "protocol")]
    parts, at = [], sent
    for length, style in lengths:
        parts.append((at, at + length, style))
        at += length
    return [*parts, (at, done, "other")]


def _kept(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices of the chunks to draw: all, or those on both sides of the longest gaps."""
    if len(offsets) <= _CHUNKS:
        return np.arange(len(offsets))
    longest = np.argsort(-np.diff(offsets), kind="stable")[: _CHUNKS // 2]
    return np.unique(np.concatenate([longest, longest + 1]))


def _units(ns: int, length: int) -> float:
    return round(ns / length, 5 if length == NS else 2)


def _label(run: Run, row: np.void, done: int, stages: dict[int, str]) -> str:
    words = []
    if stages:
        words.append(stages[int(row["stage"])])
    if row["class"] >= 0:
        words.append(run.records.classes[int(row["class"])])
    if row["n_in"] > 0 and row["n_out"] >= 0:
        words.append(f"{int(row['n_in']):,} → {int(row['n_out']):,} tokens")
    words += [f"{formatting.milliseconds(done / NS)} ms", f"request {int(row['id'])}"]
    return formatting.one_line(" · ".join(words), 110)
