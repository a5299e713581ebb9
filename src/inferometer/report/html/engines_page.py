"""The HTML report of a comparison of engines: the answer in words, the tables and charts behind it, and whether the comparison is fair."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from inferometer.analysis.engine_choice import TITLES, Recommendation, headline, times
from inferometer.analysis.engine_results import EngineResult, EngineResults
from inferometer.campaign import ModelFacts
from inferometer.report import cost, formatting, tables
from inferometer.report.engines import (
    PERFORMANCE,
    RESOURCES,
    SIGNS,
    Column,
    certainty,
    encoder_rows,
    failure_line,
    left_out,
    level_rows,
    level_text,
    problem_lines,
    share,
    startup_rows,
    subject,
)
from inferometer.report.html import engines_charts, page
from inferometer.report.html.page import Block, Page, Section, render
from inferometer.units import format_bytes, format_seconds

_TONES = {"clear": "good", "equal": "warn", "none": "bad"}
_MOST_RATIOS = 8
"""Other engines that a use is compared with in the chart of ratios, the best first."""
_SHORT = {"requests/s": "req/s", "output tokens/s": "tokens/s", "sequences/s": "seq/s"}
"""Units on a card."""
_VERDICTS = {
    "reference": "",
    "agrees": "good",
    "differs": "warn",
    "nonsense": "bad",
    "nothing": "bad",
    "not compared": "",
}
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
        engines_charts.encoders(found),
        _resources(found),
        _startup(found),
        _outputs(found),
        _parity(found),
        _failures(found),
        _what_was_run(found),
        _definitions(found),
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
        page.item("✗", "bad", page.sentence(engine.excluded), engine.name)
        for engine in found.engines
        if engine.excluded
    ]
    blocks += [page.heading("Cannot be recommended"), page.items(excluded)] if excluded else []
    forest = _forest(found.recommendation)
    blocks += [forest] if forest is not None else []
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


def _forest(recommendation: Sequence[Recommendation]) -> Block | None:
    """How many times as good the best engine is as each of the others."""
    rows: list[dict[str, object]] = []
    for each in recommendation:
        if each.ratios:
            rows.append({"heading": f"{TITLES[each.use]}: {formatting.one_line(each.engine, 40)} against"})
        for ratio in each.ratios[:_MOST_RATIOS]:
            low, high = ratio.ci
            at, lo, hi = page.rounded((ratio.ratio, low, high))
            tone = "good" if ratio.is_clear else "plain"
            rows.append(
                {
                    "label": formatting.one_line(ratio.engine, 24),
                    "at": at,
                    "lo": lo,
                    "hi": hi,
                    "tone": tone,
                    "note": each.rule,
                }
            )
    if not rows:
        return None
    return page.chart(
        "How many times as good the best engine is as each of the others.",
        "Bars are 95 % confidence intervals. One that reaches 1 shows no clear difference.",
        {"kind": "forest", "x": {"label": "ratio (logarithmic)", "scale": "log", "format": "change"}, "rows": rows},
    )  # fmt: skip


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
    if any(tables.MARK in cell for _, _, own in (*rows, *encoders) for cell in own):
        blocks.append(page.note(f"{tables.MARK} too few values for this percentile."))
    failed = [page.item("✗", "bad", failure_line(engine)) for engine in found.engines if engine.status == "failed"]
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


# --- is it fair? -----------------------------------------------------------------------------------------------------


def _outputs(found: EngineResults) -> Section:
    rows: list[list[object]] = []
    details: list[Block] = []
    for engine in found.engines:
        own = engine.agreement
        if own is None:
            continue
        verdict = page.tinted(own.verdict, _VERDICTS[own.verdict]) if _VERDICTS[own.verdict] else own.verdict
        prefix = formatting.number(own.prefix, 1)
        rows.append(
            [engine.name, verdict, share(own.exact), share(own.tokens), prefix, own.by or "–", f"{own.prompts}"]
        )
        for each in own.examples:
            details.append(
                page.details(
                    f"{formatting.one_line(engine.name, 40)}, prompt {each.prompt + 1}: differs after {each.prefix} tokens",
                    [page.facts([(own.reference, each.expected or "(empty)"), (engine.name, each.text or "(empty)")])],
                )
            )
    if not rows:
        return Section("outputs", "Do the outputs agree?", [])
    header = ["engine", "verdict", "same outputs", "same tokens", "tokens until the first difference", "by", "prompts"]
    return Section(
        "outputs",
        "Do the outputs agree?",
        [page.table(header, rows), *details],
        "Greedy outputs for the same prompts, against those of the reference. An engine that answers nonsense or nothing cannot be "
        "recommended, however fast it is.",
    )


def _parity(found: EngineResults) -> Section:
    signs = {"unknown": ("?", "soft"), "setting": ("≠", "warn")}
    lines = [
        page.item(*signs.get(each.kind, ("!", "bad")), f"{formatting.one_line(each.text, 1000)}.", each.name)
        for each in found.parity
    ]
    names = list(dict.fromkeys(name for engine in found.engines for name in engine.facts))
    measured = [engine for engine in found.engines if engine.status == "ok"]
    blocks: list[Block] = []
    if len(measured) > 1:
        same = page.item("✓", "good", "Every engine got the same number of requests with the same numbers of tokens.")
        is_same = any(level.runs for engine in measured for level in engine.levels) and not any(
            each.kind not in signs for each in found.parity
        )
        blocks += [page.items([same])] if is_same else []
        blocks += [page.items(lines)] if lines else []
    if names:
        rows = [[engine.name, *(engine.facts.get(name, "not known") for name in names)] for engine in measured]
        blocks.append(page.table(["engine", *names], rows))
    return Section("parity", "Is the comparison fair?", blocks, "The same work for every engine, and the settings that must be the same.")  # fmt: skip


def _failures(found: EngineResults) -> Section:
    blocks: list[Block] = []
    for engine in found.engines:
        if engine.status == "failed":
            blocks.append(page.heading(formatting.one_line(engine.name, 80)))
            words = ": ".join(part for part in (engine.reason, engine.message) if part)
            blocks.append(page.note(page.sentence(words)))
            if engine.log_tail:
                blocks.append(page.code("\n".join(formatting.one_line(line, 400) for line in engine.log_tail)))
    problems = [page.item("✗", "bad", formatting.one_line(line, 1000)) for line in problem_lines(found)]
    if problems:
        blocks += [page.heading("Levels that are not valid"), page.items(problems)]
    counts = [
        [engine.name, level_text(level), name, f"{count:,}", f"{level.counts.ok:,}"]
        for engine in found.engines
        for level in engine.levels
        if level.counts is not None
        for name, count in level.counts.by_failure.items()
    ]
    if counts:
        blocks.append(page.table(["engine", "level", "failure", "requests", "succeeded"], counts))
    return Section("failures", "Failures", blocks)


# --- what was run ----------------------------------------------------------------------------------------------------


def _what_was_run(found: EngineResults) -> Section:
    device = found.device
    pairs = [
        ("compared", subject(found)),
        ("model", _model(found.model)),
        ("device", f"{f'{device.count} x ' if device.count > 1 else ''}{device.name}" if device.name else ""),
        ("objectives", "; ".join(found.slos)),
        ("started", found.started),
        ("rounds", f"{found.rounds}"),
        ("folder", found.folder),
        ("inferometer", found.inferometer),
    ]
    rows = [[engine.name, engine.type, engine.mode, engine.version or "–", _runs(engine)] for engine in found.engines]
    blocks = [
        page.facts((name, formatting.one_line(text, 600)) for name, text in pairs),
        page.table(["engine", "type", "mode", "version", "runs"], rows, texts=(4,)),
    ]
    if found.campaign:
        text = yaml.safe_dump(found.campaign, sort_keys=False, allow_unicode=True, width=100)
        blocks.append(page.details("The file", [page.code(text)]))
    return Section("run", "What was run", blocks)


def _runs(engine: EngineResult) -> str:
    names = [name for level in engine.levels for name in level.runs]
    return ", ".join(names) or "–"


def _model(model: ModelFacts) -> str:
    count = f"{model.parameters / 1e9:.3g} B parameters" if model.parameters is not None else ""
    active = model.active_parameters
    if model.parameters is not None and active is not None and active != model.parameters:
        count += f" ({active / 1e9:.3g} B active)"
    stored = f"{format_bytes(model.bytes)} of weights" if model.bytes is not None else ""
    return ", ".join(part for part in (model.name, model.architecture, count, stored, model.dtype) if part)


def _definitions(found: EngineResults) -> Section:
    return Section(
        "definitions", "Definitions", [page.details("What the figures and rules mean", [page.facts(found.definitions.items())])]
    )  # fmt: skip
