"""Made-up sweeps for the HTML report: a grid of an LLM server, and one of batch sizes of a tensor server."""

from pathlib import Path
from typing import Any

import html_runs
import msgspec
import numpy as np
import synthetic_run as made

from inferometer.analysis.knee import Knee
from inferometer.analysis.settings import settings_label
from inferometer.analysis.summary import Summary, summarise
from inferometer.analysis.sweep import Point, Sweep
from inferometer.records import Run, StagePlan
from inferometer.report.html import sweep_page
from inferometer.report.html.parts import parts

Measured = list[tuple[dict[str, Any], Run, Summary]]
LEVELS = (20.0, 60.0, 100.0)


def staged(slower: float, name: str) -> Run:
    """A run with a stage of 200 requests for each of LEVELS; responses take longer with each level."""
    rows, chunks = made.open_rows(600)
    rows["stage"] = rows["id"] // 200
    instants = np.cumsum(made.SECOND / np.repeat(LEVELS, 200)).astype(np.int64)
    later, longer = instants - rows["intended"], (slower * 10 * made.MS * rows["stage"]).astype(np.int64)
    for column in ("intended", "sent"):
        rows[column] += later
    for column in ("first_byte", "first_token", "first_content", "last_token", "done"):
        rows[column] += later + longer
    arrival = chunks.arrival + np.repeat(later + longer, rows["chunk_count"])
    plan = tuple(
        StagePlan(type="constant", open=True, name=f"{rate:g}/s", rate=rate, duration=200 / rate) for rate in LEVELS
    )
    config = made.manifest().config | {"slo": html_runs.SLOS}
    run = made.run(rows, msgspec.structs.replace(chunks, arrival=arrival), plan=plan, config=config)
    return msgspec.structs.replace(run, folder=Path("/runs/sweep") / name)


def grid(hostile: str = "") -> tuple[Sweep, Measured]:
    """Two combinations of settings; the second has no knee, and its last level is overloaded."""
    measured = [
        ({"data.input": 64, "data.note": hostile or "a"}, run := staged(2.0, "one"), summarise(run)),
        ({"data.input": 512, "data.note": hostile or "a"}, run := staged(9.0, "two"), summarise(run)),
    ]
    points = _points(measured)
    points[-1] = msgspec.structs.replace(points[-1], is_overloaded=True)
    knee = Knee(settings=measured[0][0], by="rate", level=60.0, throughput=59.5, reason="latency grows")
    return _sweep(("data.input", "data.note"), points, (knee,)), measured


def single() -> tuple[Sweep, Measured]:
    """One run whose load alone changes."""
    run = staged(2.0, "one")
    measured: Measured = [({}, run, summarise(run))]
    return _sweep((), _points(measured)), measured


def tensors() -> tuple[Sweep, Measured]:
    """A tensor server at two batch sizes."""
    measured: Measured = [({"data.batch": batch}, run := html_runs.tensors(), summarise(run)) for batch in (1, 4)]
    return _sweep(("data.batch",), _points(measured)), measured


def empty() -> tuple[Sweep, Measured]:
    return _sweep(("data.input",), []), []


def encoded(made_up: tuple[Sweep, Measured]) -> bytes:
    return sweep_page.encode(*made_up)


def _sweep(keys: tuple[str, ...], points: list[Point], knees: tuple[Knee, ...] = ()) -> Sweep:
    labels = dict.fromkeys(settings_label(point.settings) for point in points)
    words = {settings_label(knee.settings): f"the knee is at {knee.level:g}/s: {knee.reason}" for knee in knees}
    answers = [f"{label}: {words.get(label, 'no knee up to 100/s')}" for label in labels]
    return Sweep(folder="runs/sweep", keys=keys, points=tuple(points), knees=knees, answers=tuple(answers))


def _points(measured: Measured) -> list[Point]:
    return [
        Point(
            run=run.folder.name,
            stage=part.number,
            name=part.name,
            settings=settings,
            by="rate",
            level=part.plan.rate,
            is_quotable=True,
            is_overloaded=part.is_overloaded,
            counts=summary.stages[part.number].counts if summary.stages else summary.counts,
            throughput=part.throughput,
            metrics=part.metrics,
            slos=part.slos,
            goodput=part.goodput,
        )
        for settings, run, summary in measured
        for part in parts(run, summary)
    ]
