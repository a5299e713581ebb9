"""The HTML report of a search for the capacity: the answer first, then how it was found, and what it rests on."""

from inferometer.analysis.metrics import METRICS
from inferometer.analysis.slo_expression import parse
from inferometer.analysis.slo_presets import PRESETS
from inferometer.capacity_search.result import Capacity, Probe
from inferometer.records import Manifest
from inferometer.report import formatting
from inferometer.report.capacity import (
    PURPOSES,
    SIGNS,
    UNITS,
    amount,
    consequences,
    count_probes,
    headline,
    inferences,
    limiting_metric,
    notes,
    reason,
    required,
)
from inferometer.report.html import background, capacity_charts, page
from inferometer.report.html.overview import describe_data, instant
from inferometer.report.html.page import Block, Page, Section, render
from inferometer.report.html.parts import TITLES
from inferometer.units import format_number, format_seconds

_TONES = {"holds": "good", "fails": "bad", "undecided": "warn"}
_SLO_SIGNS = {"met": ("✓", "good"), "missed": ("✗", "bad"), "undecided": ("?", "warn")}
_BY = {
    "rate": "requests per second (open loop: requests arrive at random, whether or not earlier ones have ended)",
    "concurrency": "requests in flight (closed loop: each response is followed by the next request)",
    "users": "users, each of whom sends a request, waits for the response, thinks, and sends the next",
}


def encode(found: Capacity, manifest: Manifest | None) -> bytes:
    """The report as one HTML file; `manifest` is that of the last probe."""
    return render(capacity_page(found, manifest))


def capacity_page(found: Capacity, manifest: Manifest | None) -> Page:
    """The report, before it is rendered."""
    target = formatting.one_line(f"{found.model} at {found.url}" if found.model else found.url, 140)
    version = "" if manifest is None else manifest.inferometer
    started = "" if manifest is None else instant(manifest.started)
    folder = formatting.one_line(found.folder, 200)
    judged = " + ".join(found.presets) or ", ".join(found.slos)
    subtitle = (f"by {judged}", f"{count_probes(found)} in {format_seconds(found.seconds)}", started)
    return Page(
        title=f"Capacity of {target}",
        subtitle=formatting.one_line(" · ".join(filter(None, subtitle)), 300),
        sections=sections(found, manifest),
        footer=f"Made by inferometer {version}{f' from {folder}' if folder else ''}. This file works without a network.",
        version=version,
    )


def sections(found: Capacity, manifest: Manifest | None) -> list[Section]:
    """The sections, in the order in which they are read. Those that do not apply have no blocks."""
    return [
        _answer(found),
        _search(found),
        _load_curve(found),
        _confirmation(found),
        _what_was_run(found, manifest),
        *([] if manifest is None else [background.environment_of(manifest)]),
        _reading(found),
    ]


# --- the answer ------------------------------------------------------------------------------------------------------


def _answer(found: Capacity) -> Section:
    words = headline(found)
    tone = {"met": "good", "missed": "bad", "undecided": "warn"}[found.outcome]
    blocks: list[Block] = [
        page.answer(f"{words[:1].upper()}{words[1:]}", consequences(found), tone),
        page.cards(_cards(found)),
    ]
    if found.at_least is not None:
        blocks.insert(1, page.items([page.item(*_SLO_SIGNS[found.outcome], page.sentence(required(found)))]))
    if remarks := notes(found):
        blocks.append(page.items([page.item("!", "warn", page.sentence(text)) for text in remarks]))
    return Section("answer", "Answer", [*blocks, *_objectives(found)])


def _cards(found: Capacity) -> list[dict[str, str]]:
    low, high, unit = found.bracket.low, found.bracket.high, UNITS[found.by]
    at_low = found.at_low
    confirmed = "confirmed by a fresh run" if found.bracket.confirmed else "not confirmed by a fresh run"
    cards = [
        page.card("shown to hold", _level(low), unit if low else "", confirmed if low else "no level was"),
        page.card(
            "estimate", _level(found.bracket.estimate), unit if found.bracket.estimate else "", "from all probes"
        ),
        page.card("shown to fail", _level(high), unit if high else "", "" if high else "no level was"),
    ]
    if found.limited_by is not None:
        class_, _, name = found.limited_by.rpartition(": ")
        metric, _, statistic = name.partition(".")
        title = " ".join(filter(None, (TITLES.get(metric, metric.replace("_", " ")), statistic)))
        grows = limiting_metric(found.limited_by)
        cards.append(page.card("limited by", title, "", f"{grows} {'' if class_ else 'grows first'}".strip()))
    if not found.has_text:
        rate = inferences(found)
        under = "at the level shown to hold" if found.batch is None else f"{found.batch:,} per request"
        cards.append(page.card("inferences/s", "–" if rate is None else amount(rate), "", under))
    elif found.people is not None and found.by != "users":
        every = (at_low.mean_e2e or 0.0) + found.think if at_low is not None else found.think
        under = f"one message every {format_seconds(every)} each, of which they think {format_seconds(found.think)}"
        cards.append(page.card("people chatting", f"{found.people:,}", "", under))
    elif at_low is not None:
        cards.append(
            page.card("completed", formatting.number(at_low.throughput), "requests/s", "at the level that holds")
        )
    spent = f"of {format_seconds(found.budget)}; {count_probes(found)}"
    cards.append(page.card("time spent", format_seconds(found.seconds), "", spent))
    return cards


def _level(level: float | None) -> str:
    return "–" if level is None else amount(level)


def _objectives(found: Capacity) -> list[Block]:
    """Each objective at both ends of the interval."""
    failing = [one for one in found.probes if one.level == found.bracket.high and one.status == "fails"]
    ends = [probe for probe in (found.at_low, failing[-1] if failing else None) if probe is not None]
    if not ends:
        return []
    rows = [
        [formatting.one_line(objective, 100), *(_judgement(probe, objective) for probe in ends)]
        for objective in found.slos
    ]
    titles = [f"at {amount(probe.level)} {UNITS[found.by]}" for probe in ends]
    return [page.heading("Objectives at the ends of the interval"), page.table(["objective", *titles], rows)]


def _judgement(probe: Probe, objective: str) -> object:
    result = next((one for one in probe.slos if one.slo == objective), None)
    if result is None:
        return "–"
    sign, tone = _SLO_SIGNS[result.status]
    value: str = "overloaded" if result.value is None and probe.overloaded else result.status
    if result.value is not None:
        value = parse(result.expression).amount(result.value)
    share = probe.violations.get(objective)
    may = "" if result.allowed is None else f", {format_number(100 * result.allowed, 3)} % may"
    small = "" if share is None else f"{format_number(100 * share, 3)} % violate it{may}"
    return page.tinted(f"{sign} {value}", tone, small)


# --- the search ------------------------------------------------------------------------------------------------------


def _search(found: Capacity) -> Section:
    rows = []
    for number, probe in enumerate(found.probes, 1):
        sign, _ = SIGNS[probe.status]
        rows.append(
            [
                f"{number}",
                amount(probe.level),
                page.tinted(f"{sign} {probe.status}", _TONES[probe.status]),
                PURPOSES[probe.purpose],
                f"{probe.requests:,}",
                page.tinted(f"{probe.failed:,}", "bad") if probe.failed else "0",
                format_seconds(probe.seconds),
                formatting.number(probe.throughput),
                formatting.one_line(reason(probe), 400),
            ]
        )
    titles = ["probe", UNITS[found.by], "verdict", "purpose", "judged", "failed", "time", "completed/s", "evidence"]
    return Section(
        "search",
        "The search",
        [capacity_charts.search(found), page.table(titles, rows, texts=(8,))],
        "Each probe is a short run of its own at one level, with fresh prompts, on a server that has no request left. It ends as "
        "soon as the objectives are shown to hold or to fail.",
    )


def _load_curve(found: Capacity) -> Section:
    return Section(
        "load",
        "Load curve",
        [
            *capacity_charts.latencies(found),
            *capacity_charts.violations(found),
            *capacity_charts.throughput(found),
        ],
        "What the probes measured, by their level. The objectives and the ends of the interval are drawn in.",
    )


def _confirmation(found: Capacity) -> Section:
    """What a user gets at the highest level that holds."""
    probe = found.at_low
    if probe is None:
        return Section("confirmation", "At the highest level that holds", [])
    lines = [
        page.item(*_SLO_SIGNS[one.status], page.sentence(one.reason), formatting.one_line(one.slo, 100))
        for one in probe.slos
    ]
    names = [name for name in TITLES if name in probe.latencies]
    rows = []
    for name in names:
        one = probe.latencies[name]
        cells = [
            formatting.milliseconds(getattr(one, column)) + ("*" if column in one.unsupported else "")
            for column in ("mean", "p50", "p90", "p99")
        ]
        rows.append([f"{TITLES[name]} (ms)", *cells])
    blocks: list[Block] = [page.items(lines)] if lines else []
    if rows:
        blocks.append(page.table(["latency", "mean", "p50", "p90", "p99"], rows))
    if any("*" in cell for row in rows for cell in row[1:]):
        blocks.append(page.note("* too few values to support this percentile"))
    if probe.folder:
        folder = f"{found.folder}/{probe.folder}"
        blocks += [page.note("The whole report of this run:"), page.code(f"inferometer report {folder} --open")]
    kind = (
        f"A fresh run, longer than the probes, confirmed {amount(probe.level)} {UNITS[found.by]}:"
        if found.bracket.confirmed
        else f"{amount(probe.level)} {UNITS[found.by]} was not confirmed by a fresh, longer run. The probe that shows it:"
    )
    lead = f"{kind} {probe.requests:,} requests judged in {format_seconds(probe.seconds)}, {probe.failed:,} failed."
    return Section("confirmation", "At the highest level that holds", blocks, lead)


# --- what it rests on ------------------------------------------------------------------------------------------------


def _what_was_run(found: Capacity, manifest: Manifest | None) -> Section:
    pairs = [("target", found.url), ("model", found.model)]
    if manifest is not None:
        server = " ".join(str(manifest.server[key]) for key in ("name", "version") if manifest.server.get(key))
        pairs += [
            ("API", formatting.describe_api(manifest)),
            ("server", server),
            ("data", describe_data(manifest)),
        ]
    pairs += [
        ("raised", _BY[found.by]),
        *((f"preset {name}", _preset(name)) for name in found.presets if name in PRESETS),
        ("objectives", "; ".join(found.slos)),
        ("presets judged at", found.percentile or ""),
        ("must hold", "" if found.at_least is None else f"{amount(found.at_least)} {UNITS[found.by]}"),
        ("budget", f"{format_seconds(found.budget)}, of which {format_seconds(found.seconds)} were spent"),
        ("think time", format_seconds(found.think) if found.has_text or found.by == "users" else ""),
        ("probes in", found.folder),
    ]
    facts = page.facts((name, formatting.one_line(text, 400)) for name, text in pairs)
    return Section("run", "What was run", [facts])


def _preset(name: str) -> str:
    preset = PRESETS[name]
    limits = ", ".join(f"{metric} < {limit}" for metric, limit in preset.limits)
    return f"{limits}: {preset.about}. Source: {preset.source}"


def _reading(found: Capacity) -> Section:
    """What the words in the report mean."""
    level = UNITS[found.by]
    pairs = [
        ("holds", "The objectives are shown to be met, with 95 % confidence."),
        (
            "fails",
            "At least one objective is shown to be missed, or the queue grew for as long as requests arrived (overload).",
        ),
        (
            "undecided",
            "The probe was too short, or the server too close to a limit. It shows nothing in either direction.",
        ),
        ("shown to hold", f"The highest number of {level} at which a probe holds, below everything that fails."),
        ("shown to fail", f"The lowest number of {level} at which a probe fails."),
        (
            "estimate",
            "Where the share of violations probably reaches what is allowed, by the violations of all probes.",
        ),
        ("ramp", "A short probe that looks for the region; one without a violation shows nothing yet."),
        ("narrow down", "A probe between the highest level that may hold and the lowest that fails."),
        ("repeat", "A level is tried again, because its verdict does not fit the others or nothing else supports it."),
        ("confirm", "A fresh, longer run at the highest level that holds. If it fails, the next lower level counts."),
    ]
    if found.has_text:
        pairs.append(("people chatting", "The rate shown to hold x (mean response time + think time)."))
    used = {name for probe in found.probes for name in probe.latencies}
    pairs += [(TITLES[name], METRICS[name].definition) for name in TITLES if name in used and name in METRICS]
    return Section("reading", "How to read this", [page.facts(pairs)])
