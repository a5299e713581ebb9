"""A comparison of engines as Markdown, for a pull request or a CI job, as CSV and as JUnit XML; and the row of its reports."""

from typing import TYPE_CHECKING, Any

from inferometer.analysis.engine_figures import EngineLevel
from inferometer.analysis.engine_results import EngineResult, EngineResults
from inferometer.report import engines, formatting, junit, markdown
from inferometer.report.engine_rows import (
    PERFORMANCE,
    RESOURCES,
    SIGNS,
    certainty,
    encoder_rows,
    failure_line,
    failure_lines,
    level_rows,
    level_text,
    output_lines,
    parity_lines,
    problem_lines,
    startup_rows,
    subject,
)
from inferometer.report.json import encode
from inferometer.report.output import Report, at_once

if TYPE_CHECKING:
    from inferometer.report.html.page import Page

_STATISTICS = ("mean", "p50", "p95", "p99")


def summary(found: EngineResults) -> str:
    """The recommendation in words, then the table of levels, failures, outputs, start-up and differences."""
    lines = [f"## {markdown.escape(subject(found))}", "", f"**{markdown.escape(found.answer)}**", ""]
    for each in found.recommendation:
        lines.append(f"- {SIGNS[certainty(each)]} {markdown.escape(each.text)}")
    lines.append("")
    for columns in (PERFORMANCE, RESOURCES):
        kept, rows = level_rows(found, columns)
        if rows:
            cells = [[engine.name, level_text(level), *own] for engine, level, own in rows]
            lines += markdown.table(["engine", "level", *(column.title for column in kept)], cells)
    headers, encoders = encoder_rows(found)
    if encoders:
        cells = [[engine.name, line.name, *own] for engine, line, own in encoders]
        lines += markdown.table(["engine", "batch and length", *headers], cells)
    header, starts = startup_rows(found)
    lines += [*markdown.table(header, starts)] if starts else []
    sections = {
        "Failed": failure_lines(found),
        "Not valid": problem_lines(found),
        "Outputs": output_lines(found),
        "Differences between the engines": parity_lines(found),
        "Notes": [*found.notes, *(f"{each.use}: {each.rule}" for each in found.recommendation)],
    }
    for title, texts in sections.items():
        if texts:
            lines += [
                f"### {title}",
                "",
                *(f"- {markdown.escape(formatting.one_line(text, 600))}" for text in texts),
                "",
            ]
    return "\n".join(lines).rstrip("\n") + "\n"


def suite(found: EngineResults) -> bytes:
    """JUnit XML: whether each engine was measured, and whether an engine can be recommended for each use."""
    cases = [
        junit.Case("engines", engine.name, "passed" if engine.status == "ok" else "failed", failure_line(engine))
        for engine in found.engines
    ]
    cases += [
        junit.Case("recommendation", each.use, "passed" if each.engine else "failed", each.text)
        for each in found.recommendation
    ]
    return junit.encode(subject(found), cases)


def csv_rows(found: EngineResults) -> bytes:
    """One row per engine and level; of encoders, per engine, batch size and length. Times are in seconds; what is not known is empty."""
    rows = [_level(engine, level) for engine in found.engines if not engine.encoder for level in engine.levels]
    rows += [
        {
            "engine": engine.name,
            "batch": line.batch,
            "length": line.length,
            "valid": int(line.valid),
            "count": line.count,
        }
        | {f"{name}_s": getattr(line, name) for name in ("mean", "sd", "min", "max", "median", "p95", "p99")}
        | {"sequences_per_s": line.throughput.value if line.throughput else None, "difference": line.difference}
        | {"memory": line.memory, "energy_per_sequence": line.energy_per_sequence}
        for engine in found.engines
        for line in engine.encoder
    ]
    return formatting.csv_table(rows)


def _level(engine: EngineResult, level: EngineLevel) -> dict[str, Any]:
    row: dict[str, Any] = {"engine": engine.name, "by": level.by, "level": level.level, "repeats": level.repeats}
    row |= {"valid": int(level.valid), "overloaded": int(level.overloaded), "objectives": level.outcome}
    row |= {"ok": level.counts.ok if level.counts else 0, "failed": level.counts.failed if level.counts else 0}
    for name in ("requests", "output_tokens", "input_tokens"):
        rate = getattr(level.throughput, name)
        row[f"{name}_per_s"] = rate.value if rate else None
        row[f"{name}_per_s_low"], row[f"{name}_per_s_high"] = rate.ci if rate else (None, None)
    for name in ("ttft", "tpot", "e2e"):
        latency = getattr(level, name)
        row |= {f"{name}_{each}_s": getattr(latency, each) if latency else None for each in _STATISTICS}
    used = level.resources
    row |= {name: getattr(used, name) if used else None for name in ("cpu", "memory", "gpu_memory", "gpu_use", "power")}
    row |= {"scaling": level.scaling.value if level.scaling else None, "energy_per_token": level.energy_per_token}
    row["cost_per_million"] = level.cost_per_million.value if level.cost_per_million else None
    return row | {"mfu": level.mfu, "mbu": level.mbu, "padding": level.padding}


def _page(found: EngineResults) -> "Page":
    from inferometer.report.html import engines_page  # noqa: PLC0415 (the other formats do without it)

    return engines_page.engines_page(found)


ENGINES = Report[EngineResults](
    "a comparison of engines",
    engines.render,
    lambda found: any(
        engine.status == "ok" for engine in found.engines
    ),  # engines that failed have a row that says why
    _page,
    {
        "json": at_once(encode),
        "csv": at_once(csv_rows),
        "markdown": at_once(summary),
        "junit": at_once(suite),
    },
    engines.WIDEST,
)
