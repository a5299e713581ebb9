"""The HTML report of a comparison of engines: the answer in words, the tables and charts behind it, and whether the comparison is fair."""

from collections.abc import Sequence
from pathlib import Path

from inferometer.analysis.engine_results import EngineResults
from inferometer.analysis.recommendation import TITLES, Recommendation, headline, times
from inferometer.report import cost, formatting
from inferometer.report.document import MARK, Section
from inferometer.report.engine_rows import (
    PERFORMANCE,
    RESOURCES,
    SIGNS,
    Column,
    certainty,
    encoder_rows,
    failure_lines,
    left_out,
    level_rows,
    level_text,
    startup_rows,
)
from inferometer.report.html import encoder_charts, engines_background, engines_charts, page
from inferometer.report.html.page import Block, Page, render
from inferometer.units import format_seconds

_TONES = {"clear": "good", "equal": "warn", "none": "bad"}
_MOST_RATIOS = 8
"""Other engines that a use is compared with in the chart of ratios, the best first."""
_SHORT = {"requests/s": "req/s", "output tokens/s": "tokens/s", "sequences/s": "seq/s"}
"""Units on a card."""
_CELLS = {"✓": "good", "✗": "bad", "?": "warn", "not valid": "bad", "overloaded": "warn", "not measured": "bad"}


def encode(found: EngineResults) -> bytes:
    """The report as one HTML file."""
    return render(engines_page(found))


def engines_page(found: EngineResults) -> Page:
    """The report, before it is rendered."""
    count = sum(engine.status == "ok" for engine in found.engines)
    words = [f"{count} of {len(found.engines)} engines measured"]
    words += [f"{found.rounds} rounds"] if found.rounds > 1 else []
    words += [found.device.name, found.started]
    name = Path(found.folder).name
    return Page(
        title=f"Engines for {formatting.one_line(found.model.name, 80)}",
        subtitle=" · ".join(formatting.one_line(word, 80) for word in words if word),
        sections=sections(found),
        footer=f"Made by inferometer {found.inferometer}{f' from {name}' if name else ''}. This file works without a network.",
        version=found.inferometer,
    )


def sections(found: EngineResults) -> list[Section]:
    """The sections of the page. Those that do not apply have no blocks."""
    return [
        _answer(found),
        _summary(found),
        engines_charts.throughput(found),
        engines_charts.latency(found),
        engines_charts.pareto(found),
        encoder_charts.encoders(found),
        _resources(found),
        _startup(found),
        engines_background.outputs(found),
        engines_background.parity(found),
        engines_background.failures(found),
        engines_background.what_was_run(found),
        engines_background.definitions(found),
    ]


# --- the answer ------------------------------------------------------------------------------------------------------


def _answer(found: EngineResults) -> Section:
    words, text = headline(found.recommendation)
    tone = (
        "good"
        if all(each.is_clear for each in found.recommendation)
        else "warn"
        if any(each.engine for each in found.recommendation)
        else "bad"
    )
    blocks: list[Block] = [page.answer(formatting.one_line(words, 80), formatting.one_line(text, 1000), tone)]
    blocks += [page.cards([_card(each) for each in found.recommendation])] if found.recommendation else []
    lines = []
    for each in found.recommendation:
        kind = certainty(each)
        without = f" Left out: {'; '.join(left_out(each, found))}." if each.engine and left_out(each, found) else ""
        text = formatting.one_line(each.text + without, 2000)
        lines.append(page.item(SIGNS[kind], _TONES[kind], text, TITLES[each.use]))
    blocks += [page.items(lines)] if lines else []
    excluded = [
        page.item(
            "✗",
            "bad",
            page.sentence("It failed: see the summary" if engine.message else engine.excluded),
            engine.name,
        )
        for engine in found.engines
        if engine.excluded
    ]
    blocks += [page.heading("Cannot be recommended"), page.items(excluded)] if excluded else []
    blocks += _ratios(found.recommendation)
    blocks += [page.note(page.sentence(note)) for note in found.notes]
    if found.recommendation:
        rules = [(TITLES[each.use], each.rule) for each in found.recommendation]
        rules.append(("a clear difference", "the 95 % interval of the ratio of the two figures does not include 1"))
        blocks.append(page.details("By which rules", [page.facts(rules)]))
    return Section("answer", "Answer", blocks)


def _card(each: Recommendation) -> dict[str, str]:
    """The figure that the recommendation is about, and how far ahead it is."""
    title = f"{TITLES[each.use]}: {formatting.one_line(each.engine, 40) or 'no engine'}"
    if not each.standings:
        return page.card(title, "–", "", "no engine can be recommended", "bad")
    best = each.standings[0]
    value, unit = formatting.number(best.value), _SHORT.get(best.unit, best.unit)
    if unit == "s":
        value, _, unit = format_seconds(best.value).partition(" ")
    elif " per " in unit:
        value = cost.money(best.value) if each.use == "cost" else value
        unit = unit.partition(" per ")[0]
    where = f"at {best.by} {formatting.rate(best.level)}" if best.level is not None else ""
    per = f"per {best.unit.partition(' per ')[2]}" if " per " in best.unit else ""
    ahead = times(each.ratios[0]) if each.ratios else "the only one"
    if each.equal:
        ahead = f"no clear difference from {', '.join(each.equal)}"
    under = "; ".join(filter(None, (" ".join(filter(None, (per, where))), ahead)))
    return page.card(title, value, unit, formatting.one_line(under, 160), _TONES[certainty(each)])


def _ratios(recommendation: Sequence[Recommendation]) -> list[Block]:
    """How many times as good the best engine is as each of the others, for each use."""
    panes: dict[str, Sequence[Block]] = {each.use: [_forest(each)] for each in recommendation if each.ratios}
    switch = [(each.use, TITLES[each.use]) for each in recommendation if each.ratios]
    return [page.tabs([switch], panes)] if panes else []


def _forest(each: Recommendation) -> Block:
    texts = {standing.engine: standing.text for standing in each.standings}
    rows: list[dict[str, object]] = []
    for ratio in each.ratios[:_MOST_RATIOS]:
        at, lo, hi = page.rounded((ratio.ratio, *ratio.ci))
        tone = "good" if ratio.is_clear else "plain"
        name, note = formatting.one_line(ratio.engine, 24), formatting.one_line(texts.get(ratio.engine, ""), 160)
        rows.append({"label": name, "at": at, "lo": lo, "hi": hi, "tone": tone, "note": note})
    more = f" {len(each.ratios) - _MOST_RATIOS} more are further behind." if len(each.ratios) > _MOST_RATIOS else ""
    return page.chart(
        f"{formatting.one_line(each.engine, 40)} against the others, for {TITLES[each.use]}.",
        f"How many times as good it is: {each.rule}. Bars are 95 % confidence intervals; one that reaches `same` shows no clear "
        f"difference.{more}",
        {"kind": "forest", "x": {"label": "ratio (logarithmic)", "scale": "log", "format": "change"}, "rows": rows},
    )


# --- tables ----------------------------------------------------------------------------------------------------------


def _summary(found: EngineResults) -> Section:
    blocks: list[Block] = []
    kept, rows = level_rows(found, PERFORMANCE)
    if rows:
        blocks.append(_table(found, kept, PERFORMANCE))
    headers, encoders = encoder_rows(found)
    if encoders:
        cells: list[list[object]] = [
            [engine.name, line.batch, line.length, *(_cell(cell) for cell in own)] for engine, line, own in encoders
        ]
        blocks.append(page.table(["engine", "batch", "length", *headers], cells))
    if any(MARK in cell for _, _, own in (*rows, *encoders) for cell in own):
        blocks.append(page.note(f"{MARK} too few values for this percentile."))
    failed = [page.item("✗", "bad", line) for line in failure_lines(found)]
    blocks += [page.items(failed)] if failed else []
    lead = "Every engine at every level. Latencies in ms." if blocks else ""
    return Section("summary", "Summary", blocks, lead)


def _table(found: EngineResults, kept: Sequence[Column], columns: Sequence[Column]) -> Block:
    _, rows = level_rows(found, columns)
    cells: list[list[object]] = [
        [formatting.one_line(engine.name, 40), level_text(level), *(_cell(cell) for cell in own)]
        for engine, level, own in rows
    ]
    return page.table(["engine", "level", *(column.title for column in kept)], cells)


def _cell(text: str) -> object:
    return page.tinted(text, _CELLS[text]) if text in _CELLS else text


def _resources(found: EngineResults) -> Section:
    blocks = engines_charts.resources(found)
    kept, rows = level_rows(found, RESOURCES)
    if rows:
        blocks.append(_table(found, kept, RESOURCES))
    if any(level.mfu is not None or level.mbu is not None for engine in found.engines for level in engine.levels):
        device = found.device
        peaks = [
            f"{device.tflops:g} TFLOPS" if device.tflops is not None else "",
            f"{device.bandwidth:g} GB/s" if device.bandwidth is not None else "",
        ]
        source = f" ({device.source})" if device.source else ""
        blocks.append(
            page.note(f"MFU and MBU are relative to {' and '.join(filter(None, peaks))} of {device.name}{source}.")
        )
    if any(level.cost_per_million is not None for engine in found.engines for level in engine.levels):
        blocks.append(page.note(f"Costs are in {found.currency} per million output tokens."))
    return Section("resources", "Resources and efficiency", blocks, "What each level took of the machine. What was not observed is missing.")  # fmt: skip


def _startup(found: EngineResults) -> Section:
    chart = engines_charts.startup(found)
    header, rows = startup_rows(found)
    blocks = [chart] if chart is not None else []
    if rows:
        blocks.append(page.table(header, rows))
        blocks.append(
            page.note(
                "Cold: the model's files were dropped from the page cache before. First: the first start, with files that may have been "
                "in memory. Times are since the process was started."
            )
        )
    return Section("startup", "Start-up", blocks)
