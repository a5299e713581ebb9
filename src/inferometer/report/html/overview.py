"""The first two sections: the verdict with the headline figures, and what was run."""

import math
import re

from inferometer.analysis import settings
from inferometer.analysis.checks import in_words
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.slo_expression import parse
from inferometer.analysis.summary import Summary
from inferometer.records import Manifest, Run
from inferometer.report import formatting, run_sections
from inferometer.report.document import Block as AnyBlock
from inferometer.report.document import Section
from inferometer.report.html import page
from inferometer.report.html.page import Block
from inferometer.report.html.parts import TITLES, Part, is_token_run, latencies
from inferometer.report.slo import SIGNS
from inferometer.report.slo import objectives as judged
from inferometer.report.verdict import TONES, check_list, may_be_quoted
from inferometer.report.verdict import verdict as checked
from inferometer.units import format_seconds

_MOST_COLUMNS = 8
"""Stages that stand beside each other in a table, or are listed at once."""


def verdict(run: Run, summary: Summary, stages: list[Part]) -> Section:
    """Whether the figures may be trusted, which objectives are met, and the headline figures."""
    words = in_words(summary.checks)
    blocks: list[AnyBlock] = [
        {"kind": "verdict", "tone": TONES[words], "words": words, "text": _answer(summary, stages)},
        page.cards(_cards(run, summary, stages)),
    ]
    passed = [check for check in summary.checks if check.status == "pass"]
    blocks += [*run_sections.notes(run, summary), *checked(run, summary).blocks[1:]]
    if summary.slos:
        matrix = [_objectives(summary, stages)] if len(stages) > 1 else []
        blocks += [page.heading("Objectives"), *matrix, *judged(summary).blocks]
    if passed:
        blocks.append(page.details(f"{_plural(len(passed), 'check')} passed", [check_list(passed)]))
    return Section("verdict", "Verdict", blocks)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _answer(summary: Summary, stages: list[Part]) -> str:
    """The run in a sentence."""
    if not summary.slos:
        kinds = [kind for kind, is_fine in summary.quotable.items() if is_fine]
        if len(kinds) < len(summary.quotable):
            return f"Figures that may be quoted: {may_be_quoted(summary)}."
        return "Latency and throughput may be quoted. No objectives were set."
    statuses = [result.status for result in summary.slos]
    if len(stages) == 1:
        counts = [f"{statuses.count(status)} {status}" for status in SIGNS if status in statuses]
        return f"{_plural(len(statuses), 'objective')}: {', '.join(counts)}."
    by_outcome: dict[str, list[int]] = {}
    for index, stage in enumerate(stages):
        own = {result.status for result in stage.slos}
        outcome = next(status for status in ("missed", "undecided", "met") if status in own)
        by_outcome.setdefault(outcome, []).append(index)
    names = [stage.name for stage in stages]
    words = {
        "met": "All objectives are met at",
        "undecided": "the run is too short to decide at",
        "missed": "an objective is missed at",
    }
    found = [
        f"{words[outcome]} {formatting.name_ranges(names, by_outcome[outcome])}"
        for outcome in words
        if outcome in by_outcome
    ]
    text = "; ".join(found)
    return f"{text[:1].upper()}{text[1:]}."


def _objectives(summary: Summary, stages: list[Part]) -> Block:
    """One row per objective, one column per stage; of many stages, one row per stage."""
    names = [result.slo for result in summary.slos]
    if len(stages) > _MOST_COLUMNS:
        rows = [[stage.name, *(_judged(stage, name) for name in names)] for stage in stages]
        return page.table(["stage", *names], rows)
    rows = [[name, *(_judged(stage, name) for stage in stages)] for name in names]
    return page.table(["objective", *(stage.name if len(stages) > 1 else "measured" for stage in stages)], rows)


def _judged(stage: Part, name: str) -> object:
    result = next((each for each in stage.slos if each.slo == name), None)
    if result is None:
        return "–"
    sign, tone = SIGNS[result.status]
    value = "" if result.value is None else parse(result.expression).amount(result.value)
    return page.tinted(f"{sign} {value}" if value else f"{sign} {result.status}", tone)


# --- headline figures ------------------------------------------------------------------------------------------------


def _cards(run: Run, summary: Summary, stages: list[Part]) -> list[dict[str, str]]:
    rates = {"requests": "requests/s"}
    if is_token_run(run, stages):
        rates["output_tokens"] = "output tokens/s"
    elif summary.throughput.inferences is not None:
        rates["inferences"] = "inferences/s"
    cards = [card for name, title in rates.items() if (card := _rate(title, name, stages))]
    for name in latencies(stages):
        if name in ("ttft", "itl", "e2e"):
            cards += [card for column in ("p50", "p99") if (card := _latency(name, column, stages))]
    if (last := _knee(summary) or _in_flight(stages)) is not None:
        cards.append(last)
    failed = summary.counts.failed + summary.counts.dropped
    total = failed + summary.counts.ok
    under = f"of {total:,} requests" + (f", {100 * failed / total:.2g} %" if failed else "")
    cards.append(page.card("failed", f"{failed:,}", "", under, "bad" if failed else ""))
    return cards


def _knee(summary: Summary) -> dict[str, str] | None:
    if summary.knee is None:
        return None
    level = formatting.rate(summary.knee.level)
    value, unit = (level, "requests/s") if summary.knee.by == "rate" else (level, "in flight")
    return page.card("knee", value, unit, "above it, latency climbs")


def _in_flight(stages: list[Part]) -> dict[str, str] | None:
    value = stages[0].throughput.in_flight if len(stages) == 1 else None
    return None if value is None else page.card("in flight", formatting.number(value), "", "requests, on average")


def _rate(title: str, name: str, stages: list[Part]) -> dict[str, str] | None:
    """A rate with its interval; of several stages the highest."""
    known = [(value, stage) for stage in stages if (value := getattr(stage.throughput, name)) is not None]
    if not known:
        return None
    value, stage = max(known, key=lambda pair: pair[0])
    if len(stages) > 1:
        return page.card(title, formatting.number(value), "", f"most, at {stage.name}")
    low, high = stage.throughput.ci.get(name, (None, None))
    under = f"95 % CI {formatting.number(low)} – {formatting.number(high)}" if low is not None else ""
    return page.card(title, formatting.number(value), "", under)


def _latency(name: str, column: str, stages: list[Part]) -> dict[str, str] | None:
    """A percentile with its interval; of several stages the lowest and the highest that have one."""
    title = f"{TITLES[name]} {column}"
    usable = [stage for stage in stages if not stage.is_overloaded and stage.metrics and stage.metrics[name].count]
    values = [(stage.metrics[name].value(column), stage) for stage in usable]
    known = [(value, stage) for value, stage in values if value is not None]
    if not known:
        return None
    if len(stages) > 1:
        value, stage = known[0]
        rest = f"; {milliseconds(known[-1][0])} at {known[-1][1].name}" if len(known) > 1 else ""
        return page.card(title, *_split(value), f"at {stage.name}{rest}")
    found = known[0][1].metrics[name]
    return page.card(title, *_split(found.value(column)), interval(found, column))


def _split(seconds: float | None) -> tuple[str, str]:
    if seconds is not None and math.isinf(seconds):
        return "∞", ""
    text = formatting.milliseconds(seconds)
    return (text, "ms") if text.replace(",", "").replace(".", "").isdigit() else (text, "")


def milliseconds(seconds: float | None) -> str:
    """A latency with its unit."""
    return " ".join(part for part in _split(seconds) if part)


def interval(found: Distribution, column: str) -> str:
    """The confidence interval of a statistic in words, or why it cannot be relied on."""
    value = found.value(column)
    if value is not None and math.isinf(value):
        return f"{found.infinite:,} failed requests count as infinitely slow"
    if column in found.unsupported:
        return "too few values to support it"
    low, high = found.ci.get(column, (None, None))
    if low is None or high is None or not math.isfinite(high):
        return ""
    return f"95 % CI {formatting.milliseconds(low)} – {formatting.milliseconds(high)}"


def started(summary: Summary) -> str:
    """When the run started, to the second."""
    return instant(summary.started)


def instant(text: str) -> str:
    """`2026-11-16 18:52:54 UTC`, from the ISO 8601 form with fractions of a second."""
    date, _, time = text.partition("T")
    return f"{date} {re.sub(r'[.][0-9]+', '', time).replace('+00:00', ' UTC')}".strip()


# --- what was run ----------------------------------------------------------------------------------------------------


def what_was_run(run: Run, summary: Summary, stages: list[Part]) -> Section:
    """The target, the load, the data, and when."""
    manifest = run.manifest
    is_long = len(stages) > _MOST_COLUMNS
    loads = [
        (f"load, {stage.name}" if len(stages) > 1 else "load", formatting.describe_load(stage.plan)) for stage in stages
    ]
    pairs = [
        ("target", formatting.describe_target(manifest)),
        ("model", str(settings.text(manifest, "server", "model") or "")),
        ("API", formatting.describe_api(manifest)),
        ("server", " ".join(str(manifest.server[key]) for key in ("name", "version") if manifest.server.get(key))),
        *([("load", f"{len(stages)} stages, see below")] if is_long else loads),
        ("data", describe_data(manifest)),
        ("started", started(summary)),
        ("measured", format_seconds(summary.window.span)),
        ("inferometer", summary.inferometer),
        ("run", run.folder.name),
    ]
    about = page.facts((name, formatting.one_line(text, 400)) for name, text in pairs)
    blocks: list[AnyBlock] = [about, *run_sections.headline(run, summary).blocks]
    if is_long:
        blocks.append(page.details(f"The load of the {len(stages)} stages", [page.facts(loads)]))
    return Section("run", "What was run", blocks)


def describe_data(manifest: Manifest) -> str:
    """The data section of the config, as `key value` pairs."""
    data = manifest.config.get("data")
    if not isinstance(data, dict):
        return ""
    classes = data.get("classes")
    if isinstance(classes, list | tuple):
        return "; ".join(f"{each.get('name')}: {_flat(each.get('data'))}" for each in classes if isinstance(each, dict))
    return _flat(data)


_MINOR = ("type", "chat_template", "prompt_as", "salt")
"""Keys of the data that the summary leaves out; the whole config is in the last sections."""


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"{len(value):,} values" if len(value) > 4 else ", ".join(map(_plain, value))
    if isinstance(value, dict) and "name" in value:  # an input tensor
        return " ".join(str(value[key]) for key in ("name", "datatype", "shape") if value.get(key))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flat(value: object) -> str:
    """`synthetic, input 400, output 60`; settings without a value are left out, and nested ones are in brackets."""
    if not isinstance(value, dict):
        return _plain(value)
    kind = [str(value["type"])] if value.get("type") else []
    rest = [
        f"{key} ({_flat(each)})" if isinstance(each, dict) else f"{key} {_plain(each)}"
        for key, each in value.items()
        if key not in _MINOR and each not in (None, "", [], {}, (), False)
    ]
    return ", ".join(kind + rest)
