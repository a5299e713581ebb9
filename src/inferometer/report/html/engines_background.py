"""The background of a comparison of engines: whether the outputs agree and the comparison is fair, failures, and what was run."""

import yaml

from inferometer.analysis.engine_results import EngineResult, EngineResults
from inferometer.campaign import ModelFacts
from inferometer.report import formatting
from inferometer.report.document import Section
from inferometer.report.engine_rows import level_text, problem_lines, share, subject
from inferometer.report.html import page
from inferometer.report.html.page import Block
from inferometer.units import format_bytes

_VERDICTS = {
    "reference": "",
    "agrees": "good",
    "differs": "warn",
    "nonsense": "bad",
    "nothing": "bad",
    "not compared": "",
}


def outputs(found: EngineResults) -> Section:
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


def parity(found: EngineResults) -> Section:
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
        rows = [[name, *(engine.facts.get(name, "not known") for engine in measured)] for name in names]
        blocks.append(page.table(["setting", *(engine.name for engine in measured)], rows))
    return Section("parity", "Is the comparison fair?", blocks, "The same work for every engine, and the settings that must be the same.")  # fmt: skip


def failures(found: EngineResults) -> Section:
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


def what_was_run(found: EngineResults) -> Section:
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


def definitions(found: EngineResults) -> Section:
    return Section(
        "definitions", "Definitions", [page.details("What the figures and rules mean", [page.facts(found.definitions.items())])]
    )  # fmt: skip
