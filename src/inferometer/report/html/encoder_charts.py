"""The charts of encoders: latency by sequence length, and throughput by batch size."""

from collections.abc import Callable
from typing import Any

from inferometer.analysis.encoder_results import EncoderFigures
from inferometer.analysis.engine_results import EngineResults
from inferometer.report import formatting
from inferometer.report.document import Section
from inferometer.report.html import page
from inferometer.report.html.engines_charts import BETWEEN, looks, milli, tabs
from inferometer.report.html.page import Block


def encoders(found: EngineResults) -> Section:
    """Latency by sequence length for each batch size, and throughput by batch size for each length."""
    every = [line for engine in found.engines for line in engine.encoder if line.mean is not None]
    batches, lengths = sorted({line.batch for line in every}), sorted({line.length for line in every})
    panes: dict[str, tuple[str, Block | None]] = {}
    for batch in batches:
        panes[f"latency {batch}"] = (f"latency, batch {batch}", _encoder_chart(
            found, f"Latency against the sequence length, batch {batch}.", "sequence length in tokens", "ms (logarithmic)",
            lambda line, batch=batch: line.length if line.batch == batch else None,  # type: ignore[misc]
            lambda line: (milli(line.mean), tuple(milli(end) for end in line.ci.get("mean", (None, None)))), "log",
        ))  # fmt: skip
    for length in lengths:
        panes[f"throughput {length}"] = (f"throughput, length {length}", _encoder_chart(
            found, f"Sequences/s against the batch size, length {length}.", "batch size", "sequences/s",
            lambda line, length=length: line.batch if line.length == length else None,  # type: ignore[misc]
            lambda line: (None, (None, None)) if line.throughput is None else (line.throughput.value, line.throughput.ci), "linear",
        ))  # fmt: skip
    return Section(
        "encoders",
        "Latency and throughput",
        tabs(panes),
        "One forward pass, by engine, batch size and sequence length.",
    )


def _encoder_chart(
    found: EngineResults, title: str, x_label: str, y_label: str, at: Callable[[EncoderFigures], int | None],
    read: Callable[[EncoderFigures], tuple[float | None, Any]], scale: str,
) -> Block | None:  # fmt: skip
    series = []
    for engine in found.engines:
        known = sorted(
            ((x, *read(line), line) for line in engine.encoder if (x := at(line)) is not None and read(line)[0] is not None),
            key=lambda each: each[0],
        )  # fmt: skip
        if known:
            series.append(
                {
                    **looks(found)[engine.name],
                    "x": [x for x, _, _, _ in known],
                    "y": page.rounded(value for _, value, _, _ in known),
                    "lo": page.rounded(ends[0] for _, _, ends, _ in known),
                    "hi": page.rounded(ends[1] for _, _, ends, _ in known),
                    "hollow": [not line.valid for _, _, _, line in known],
                    "labels": [f"{formatting.one_line(engine.name, 40)}, {line.name}" for _, _, _, line in known],
                    "points": True,
                }
            )
    ticks = sorted({x for each in series for x in each["x"]})
    if not ticks:
        return None
    axis = {"label": x_label, "scale": "log", "ticks": ticks, "min": ticks[0] / BETWEEN, "max": ticks[-1] * BETWEEN}
    y = {"label": y_label, "scale": "log"} if scale == "log" else {"label": y_label, "min": 0}
    reading = "Bars are 95 % confidence intervals of the mean. Hollow: not valid."
    return page.chart(title, reading, {"kind": "xy", "height": 300, "x": axis, "y": y, "series": series})
