"""The HTML report of a sweep: the answer, what was run, the curves and tables over all runs, and whether each run can be trusted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferometer.analysis import settings
from inferometer.analysis.checks import in_words
from inferometer.analysis.settings import settings_label, short_value
from inferometer.analysis.summary import Summary
from inferometer.analysis.sweep import Point, Sweep
from inferometer.records import Run
from inferometer.report import formatting
from inferometer.report.document import Block as AnyBlock
from inferometer.report.document import Section
from inferometer.report.html import background, overview, page, sweep_charts
from inferometer.report.html.page import Block, Page, render
from inferometer.report.html.parts import TITLES
from inferometer.report.html.run_page import title
from inferometer.report.html.sweep_charts import Curve, Rates, level_text, outcome
from inferometer.report.verdict import TONES, check_list

Measured = Sequence[tuple[dict[str, Any], Run, Summary]]
"""The runs of a sweep, each with the values of the grid's keys."""

_MOST_SENTENCES = 12
"""Combinations of settings whose answers are shown at once; more are folded away."""


def encode(sweep: Sweep, measured: Measured) -> bytes:
    """The report as one HTML file."""
    return render(sweep_page(sweep, measured))


def sweep_page(sweep: Sweep, measured: Measured) -> Page:
    """The report, before it is rendered."""
    each = sweep_charts.curves(sweep)
    words = [f"sweep of {_plural(len(sweep.points), 'level')}"]
    if len(each) > 1:
        words.append(f"{len(each)} combinations of {', '.join(sweep.keys)}")
    if measured:
        words += [formatting.describe_api(measured[0][1].manifest), overview.started(measured[0][2])]
    return Page(
        title=title(measured[0][1]) if measured else f"Sweep {_folder(sweep)}",
        subtitle=" · ".join(filter(None, words)),
        sections=sections(sweep, measured),
        footer=f"Made by inferometer {sweep.inferometer} from {_folder(sweep)}. This file works without a network.",
        version=sweep.inferometer,
    )


def sections(sweep: Sweep, measured: Measured) -> list[Section]:
    """The sections of a sweep. Those that do not apply to it have no blocks."""
    each, rates = sweep_charts.curves(sweep), sweep_charts.rates_of(sweep)
    found = [
        _answer(sweep, each, rates, measured),
        _what_was_run(sweep, each, measured),
        sweep_charts.load_curve(sweep, each, rates),
        sweep_charts.throughput(sweep, each, rates),
        sweep_charts.pareto(sweep, each),
        sweep_charts.heat_table(sweep, each, rates),
        sweep_charts.points_table(sweep, each),
        sweep_charts.distributions(sweep, each, measured),
        _breakdown(each, measured),
        _checks(sweep, each, measured),
    ]
    if measured:
        _, run, summary = measured[0]
        found += [background.environment(run), background.definitions(summary)]
    return found


def _folder(sweep: Sweep) -> str:
    return formatting.one_line(Path(sweep.folder).name, 200)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# --- the answer ------------------------------------------------------------------------------------------------------


def _answer(sweep: Sweep, each: Sequence[Curve], rates: Rates, measured: Measured) -> Section:
    # A sweep goes beyond what a server can do on purpose: an overloaded level does not make it invalid.
    judged = [point for point in sweep.points if not point.is_overloaded]
    invalid = [point for point in judged if not point.is_quotable]
    is_warned = any(check.status == "warn" for _, _, summary in measured for check in summary.checks)
    words, tone = ("VALID with warnings", "warn") if is_warned else ("VALID", "good")
    if invalid or not judged:
        words, tone = f"{len(invalid)} of {len(sweep.points)} levels INVALID", "warn"
        if len(invalid) == len(judged):
            words, tone = "INVALID", "bad"
    lines = page.items([_sentence(sweep, own, rates) for own in each])
    blocks: list[Block] = [
        {"kind": "verdict", "tone": tone, "words": words, "text": _best_text(sweep, each, rates)},
        page.cards(_cards(sweep, each, rates)),
    ]
    if len(each) <= _MOST_SENTENCES:
        blocks.append(lines)
    else:
        blocks.append(page.details(f"The answers for each of the {len(each)} combinations", [lines]))
    blocks += _missing(sweep)
    if invalid:
        blocks.append(
            page.note(
                "Levels that are not valid are left out of these answers; the section Checks says why they are not."
            )
        )
    return Section("answer", "Answer", blocks)


def _missing(sweep: Sweep) -> list[Block]:
    """What was not measured."""
    lines = [
        page.item(
            "✗", "bad", formatting.one_line(f"{settings_label(each.settings)} was not measured: {each.error}", 1000)
        )
        for each in sweep.unmeasured
    ]
    note = [page.note("The sweep was interrupted: the last levels are missing.")] if sweep.interrupted else []
    return [*([page.items(lines)] if lines else []), *note]


def best(points: Sequence[Point], rate: str) -> tuple[Point | None, str]:
    """The point with the highest rate of those that meet all objectives; of those that may, if none was shown to. With which it is.

    Points that may not be quoted, or are overloaded, are left out. Without objectives, all others count, and the status is empty.
    """
    usable = [point for point in points if point.is_quotable and not point.is_overloaded]
    usable = [point for point in usable if getattr(point.throughput, rate) is not None]
    for status in ("", "met", "undecided"):
        if found := [point for point in usable if outcome(point.slos) == status]:
            return max(found, key=lambda point: getattr(point.throughput, rate)), status
    return None, "missed" if usable else "none"


def _best_text(sweep: Sweep, each: Sequence[Curve], rates: Rates) -> str:
    """The sweep in a sentence."""
    point, status = best(sweep.points, rates.main)
    what = rates.titles[rates.main]
    if point is None:
        if status != "missed" and sweep.points and all(each.is_overloaded for each in sweep.points):
            return "Every level is overloaded: measure lower loads."
        return "Every level misses an objective." if status == "missed" else "No level is valid and not overloaded."
    value = f"{formatting.number(getattr(point.throughput, rates.main))} {what}"
    at = _where(each, point)
    if status == "undecided":
        return f"No level was shown to meet the objectives; the highest that may is {value}, {at}: it was too short to decide."
    return f"Up to {value} {'within the objectives' if status == 'met' else 'at levels that the server keeps up with'}, {at}."


def _where(each: Sequence[Curve], point: Point) -> str:
    """`at 14/s with input 1024`."""
    level = level_text(point.by, point.level) or formatting.one_line(point.name, 40)
    label = next((own.label for own in each if own.settings == point.settings), "")
    return f"at {level}{f' with {label}' if len(each) > 1 else ''}"


def _sentence(sweep: Sweep, own: Curve, rates: Rates) -> dict[str, str]:
    """The knee of a combination of settings, and the most that it does within the objectives."""
    text = f"{own.answer.rstrip('.')}." if own.answer else ""
    point, status = best(own.points, rates.main)
    if point is not None and status:
        value = f"{formatting.number(getattr(point.throughput, rates.main))} {rates.titles[rates.main]}"
        words = "Within the objectives" if status == "met" else "Perhaps within the objectives"
        text += f" {words}: up to {value}, at {level_text(point.by, point.level)}."
    elif status == "missed":
        text += " Every level that is valid misses an objective."
    sign, tone = {"met": ("✓", "good"), "missed": ("✗", "bad"), "undecided": ("?", "warn")}.get(status, ("•", "soft"))
    text = formatting.one_line(text, 1000)
    return page.item(sign, tone, f"{text[:1].upper()}{text[1:]}", own.label if sweep.keys else "")


def _cards(sweep: Sweep, each: Sequence[Curve], rates: Rates) -> list[dict[str, str]]:
    point, status = best(sweep.points, rates.main)
    cards = []
    if point is not None:
        words = {"met": "; objectives met", "undecided": "; objectives undecided"}.get(status, "")
        for rate, name in reversed(rates.titles.items()):
            value = getattr(point.throughput, rate)
            if value is not None:
                cards.append(page.card(name, formatting.number(value), "", f"{_where(each, point)}{words}"))
        for name, column in (("ttft", "p99"), ("itl", "p99"), ("e2e", "p99")):
            found = point.metrics.get(name) if point.metrics else None
            if found is not None and found.count:
                value, _, unit = overview.milliseconds(found.value(column)).partition(" ")
                cards.append(page.card(f"{TITLES[name]} {column} there", value, unit, overview.interval(found, column)))
    knees = [own for own in each if own.knee is not None]
    if knees:
        highest = max(knees, key=lambda own: own.knee.level if own.knee else 0.0)
        assert highest.knee is not None
        under = f"with {highest.label}" if len(each) > 1 else "the load above which latency grows faster"
        cards.append(page.card("highest knee" if len(knees) > 1 else "knee", level_text(highest.knee.by, highest.knee.level), "", under))  # fmt: skip
    overloaded = sum(each.is_overloaded for each in sweep.points)
    failed = sum(each.counts.failed + each.counts.dropped for each in sweep.points)
    total = failed + sum(each.counts.ok for each in sweep.points)
    cards.append(page.card("levels", f"{len(sweep.points):,}", "", f"{overloaded} overloaded"))
    cards.append(page.card("failed", f"{failed:,}", "", f"of {total:,} requests", "bad" if failed else ""))
    return cards


# --- what was run, and whether it can be trusted ---------------------------------------------------------------------


def _what_was_run(sweep: Sweep, each: Sequence[Curve], measured: Measured) -> Section:
    levels: dict[str, dict[str, bool]] = {}
    for point in sorted(sweep.points, key=lambda point: point.level or 0.0):
        if point.level is not None:
            levels.setdefault(point.by, {})[formatting.rate(point.level)] = True
    pairs = [
        *((key, _values(own.settings.get(key) for own in each)) for key in sweep.keys),
        *((sweep_charts.LEVELS[by], ", ".join(found)) for by, found in levels.items()),
    ]
    if measured:
        _, run, summary = measured[0]
        manifest = run.manifest
        pairs = [
            ("target", formatting.describe_target(manifest)),
            ("model", str(settings.text(manifest, "server", "model") or "")),
            ("API", formatting.describe_api(manifest)),
            ("server", " ".join(str(manifest.server[key]) for key in ("name", "version") if manifest.server.get(key))),
            *pairs,
            ("first level", formatting.describe_load(run.manifest.plan[0])),
            ("objectives", "; ".join(dict.fromkeys(result.slo for _, _, own in measured for result in own.slos))),
            ("started", overview.started(summary)),
            ("inferometer", sweep.inferometer),
            ("runs", f"{len(measured)}, in {_folder(sweep)}"),
        ]
    return Section("run", "What was run", [page.facts((name, formatting.one_line(text, 600)) for name, text in pairs)])


def _values(values: Any) -> str:
    return ", ".join(dict.fromkeys(short_value(value) for value in values))


def _breakdown(each: Sequence[Curve], measured: Measured) -> Section:
    """Where the time went in each run, for servers that report their own times."""
    blocks: list[AnyBlock] = []
    for index, (values, run, summary) in enumerate(measured):
        found = background.breakdown(run, summary).blocks
        if found:
            label = next((own.label for own in each if own.settings == values), f"run {index + 1}")
            blocks += [page.details(label, found)] if len(measured) > 1 else found
    return Section(
        "breakdown", "Where the time went", blocks, "The mean end-to-end time of each level, by what it was spent on."
    )


def _checks(sweep: Sweep, each: Sequence[Curve], measured: Measured) -> Section:
    """The verdict of each run, which of its levels are not valid, and why."""
    rows: list[list[object]] = []
    details: list[Block] = []
    for values, run, summary in measured:
        label = next((own.label for own in each if own.settings == values), "")
        own_points = sorted((p for p in sweep.points if p.run == run.folder.name), key=lambda p: p.stage)
        levels = [level_text(p.by, p.level) or p.name for p in own_points]
        words = in_words(summary.checks)
        failed = [check for check in summary.checks if check.status == "fail"]
        where = sorted({stage for check in failed for stage in check.stages or range(len(levels))})
        why = ", ".join(check.name.replace("_", " ") for check in failed)
        invalid = formatting.name_ranges(levels, [stage for stage in where if stage < len(levels)])
        shown = formatting.name_ranges(levels, range(len(levels)))
        rows.append([label, shown, page.tinted(words, TONES[words]), invalid or "–", why or "–", run.folder.name])
        found = [check for check in summary.checks if check.status != "pass"]
        if found:
            details.append(page.details(f"{label}, {shown}: {words}", [check_list(found)]))
    if not rows:
        return Section("checks", "Checks", [])
    titles = ["run", "levels", "verdict", "levels not valid", "failed checks", "folder"]
    return Section(
        "checks",
        "Checks",
        [page.table(titles, rows, texts=(1, 2, 3, 4, 5)), *details],
        "Whether the figures of each run can be trusted. Levels beyond what the server can do fail the check overload.",
    )
