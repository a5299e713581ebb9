"""The HTML report of a search for the capacity: the answer first, then how it was found, and what it rests on."""

from inferometer.analysis.metrics import METRICS
from inferometer.analysis.slo_expression import parse
from inferometer.analysis.slo_presets import PRESETS
from inferometer.capacity_search.result import Capacity, Probe
from inferometer.capacity_search.trials import Basis
from inferometer.records import Manifest
from inferometer.report import formatting
from inferometer.report.capacity import (
    PURPOSES,
    UNITS,
    amount,
    chatting,
    consequence,
    count_probes,
    headline,
    inferences,
    judged,
    limiting_metric,
    minutes,
    notes,
    reason,
    required,
    verdict,
)
from inferometer.report.document import Section
from inferometer.report.html import background, capacity_charts, page
from inferometer.report.html.overview import describe_data, instant
from inferometer.report.html.page import Block, Page, render
from inferometer.report.html.parts import TITLES
from inferometer.units import format_number, format_seconds

_SLO_SIGNS = {"met": ("✓", "good"), "missed": ("✗", "bad"), "undecided": ("?", "warn")}
_BASES: dict[Basis, str] = {
    "shown": "shown with 95 % confidence",
    "likely": "likely, with less than 95 % confidence",
    "estimated": "by the curve of the closed loops; no probe showed it",
}
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
        page.answer(f"{words[:1].upper()}{words[1:]}", page.sentence(consequence(found)), tone),
        page.cards(_cards(found)),
    ]
    if found.at_least is not None:
        blocks.insert(1, page.items([page.item(*_SLO_SIGNS[found.outcome], page.sentence(required(found)))]))
    if remarks := notes(found):
        blocks.append(page.items([page.item("!", "warn", page.sentence(text)) for text in remarks]))
    return Section("answer", "Answer", [*blocks, *capacity_charts.picture(found)])


def _cards(found: Capacity) -> list[dict[str, str]]:
    ends, unit = found.bracket, UNITS[found.by]
    confirmed = ", confirmed by a fresh run" if ends.confirmed and ends.low_basis != "estimated" else ""
    under = (
        f"{_BASES[ends.low_basis]}{confirmed}" if ends.low else "no level does" if found.is_too_slow else "not known"
    )
    cards = [page.card("holds", _level(ends.low), unit if ends.low else "", under)]
    if ends.estimate:
        cards.append(page.card("probably", _level(ends.estimate), unit, "the capacity, by all probes together"))
    if ends.low is not None and found.has_limit:
        cards.append(page.card("fails", _level(ends.high), unit if ends.high else "", _BASES[ends.high_basis]))
    elif ends.low is not None:
        cards.append(page.card("fails", "–", "", "no level failed"))
    if found.limited_by is not None:
        class_, _, name = found.limited_by.rpartition(": ")
        metric, _, statistic = name.partition(".")
        title = " ".join(filter(None, (TITLES.get(metric, metric.replace("_", " ")), statistic)))
        grows = "" if class_ or ends.low is None else " grows first"
        cards.append(page.card("limited by", title, "", f"{limiting_metric(found.limited_by)}{grows}"))
    if not found.has_text:
        rate = inferences(found)
        under = "at the level that holds" if found.batch is None else f"{found.batch:,} per request"
        cards.append(page.card("inferences/s", "–" if rate is None else amount(rate), "", under))
    elif found.people is not None and found.by != "users":
        cards.append(page.card("people", f"{found.people:,}", "", f"at the level that holds: {chatting(found)}"))
    elif found.at_low is not None:
        cards.append(
            page.card("completed", formatting.number(found.at_low.throughput), "requests/s", "at the level that holds")
        )
    spent = f"of {minutes(found.budget)}; {count_probes(found)}"
    cards.append(page.card("time spent", format_seconds(found.seconds), "", spent))
    return cards


def _level(level: float | None) -> str:
    return "–" if level is None else amount(level)


def _objectives(found: Capacity) -> list[Block]:
    """Each objective at both ends of the interval."""
    ends = [probe for probe in (found.at_low, found.at_high) if probe is not None]
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
    status = judged(probe, result)
    sign, tone = _SLO_SIGNS[status]
    value: str = "overloaded" if result.value is None and probe.overloaded else status
    if result.value is not None:
        value = parse(result.expression).amount(result.value)
    share = probe.violations.get(objective)
    may = "" if result.allowed is None else f", {format_number(100 * result.allowed, 3)} % may"
    small = "" if share is None else f"{format_number(100 * share, 3)} % violate it{may}"
    return page.tinted(f"{sign} {value}", tone, small)


# --- the search ------------------------------------------------------------------------------------------------------


def _search(found: Capacity) -> Section:
    rows = [
        [
            f"{number}",
            PURPOSES[probe.purpose],
            f"{amount(probe.level)}{' in flight' if probe.purpose == 'explore' else ''}",
            page.tinted(" ".join(verdict(probe)[:2]), verdict(probe)[2]),
            reason(probe),
            formatting.number(probe.throughput),
            format_seconds(probe.seconds),
            f"{_level(probe.low)} to {_level(probe.high)}",
        ]
        for number, probe in enumerate(found.probes, 1)
    ]
    titles = ["probe", "purpose", UNITS[found.by], "verdict", "evidence", "completed/s", "time", "interval after it"]
    return Section(
        "search",
        "The search",
        [*capacity_charts.search(found), page.table(titles, rows, texts=(1, 3, 4))],
        "First a few short closed loops, which cannot be overloaded, show the highest throughput and where the objectives break. Then each "
        "probe is a run of its own at one level, with fresh prompts, on a server that has no request left.",
    )


def _load_curve(found: Capacity) -> Section:
    return Section(
        "load",
        "Load curve",
        [*capacity_charts.throughput(found), *capacity_charts.latencies(found)],
        "The throughput of the closed loops, and what the probes measured, by their level.",
    )


def _confirmation(found: Capacity) -> Section:
    """What a user gets at the highest level that holds."""
    probe = found.at_low
    if probe is None:
        return Section("confirmation", "At the highest level that holds", _objectives(found))
    names = [name for name in TITLES if name in probe.latencies]
    rows = []
    for name in names:
        one = probe.latencies[name]
        cells = [
            formatting.milliseconds(getattr(one, column)) + ("*" if column in one.unsupported else "")
            for column in ("mean", "p50", "p90", "p99")
        ]
        rows.append([f"{TITLES[name]} (ms)", *cells])
    blocks = _objectives(found)
    if rows:
        blocks += [page.heading("Latencies"), page.table(["latency", "mean", "p50", "p90", "p99"], rows)]
    if any("*" in cell for row in rows for cell in row[1:]):
        blocks.append(page.note("* too few values to support this percentile"))
    if probe.folder:
        folder = f"{found.folder}/{probe.folder}"
        blocks += [page.note("The whole report of this run:"), page.code(f"inferometer report {folder} --open")]
    confirmed = "" if found.bracket.confirmed else ", not confirmed by a fresh run"
    lead = f"The latest probe at {amount(probe.level)} {UNITS[found.by]}{confirmed}: {probe.requests:,} requests judged in {format_seconds(probe.seconds)}, {probe.failed:,} failed."
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
        ("budget", f"{minutes(found.budget)}, of which {format_seconds(found.seconds)} were spent"),
        ("think time", format_seconds(found.think) if found.has_text or found.by == "users" else ""),
        ("probes in", found.folder),
    ]
    facts = page.facts((name, formatting.one_line(text, 400)) for name, text in pairs)
    return Section("run", "What was run", [facts])


def _preset(name: str) -> str:
    preset = PRESETS[name]
    limits = ", ".join(f"{metric} < {limit}" for metric, limit in preset.limits)
    return f"{limits}: {preset.about}. Source: {preset.source}"


_WORDS = {
    "holds, fails": "The objectives are shown to be met, or one to be missed, with 95 % confidence.",
    "likely": "The same with less confidence: about one in seven such verdicts is wrong.",
    "overloaded": "The number of requests in flight grew for as long as requests arrived, and too many were too slow.",
    "not proven": "Too few independent requests to say either.",
    "close": "About as many requests violate an objective as may: the level is close to the capacity.",
    "too short": "Too few requests for any verdict.",
    "growing": "The number of requests in flight grew, but few were too slow yet.",
    "warming up": "The first requests took more than twice as long as the last: the server was not ready yet.",
    "by the curve": "Where the closed loops, and all probes together, put an end of the interval that no probe has shown.",
    "probably": "Where the share of violations probably reaches what is allowed, by all probes together.",
    "within, beyond": "Whether a closed loop met the objectives as measured, without confidence: it is only seconds long.",
    "closed loop": "A number of requests in flight: each response is followed by the next request. It finds the curve of throughput.",
    "narrow down": "A probe where the capacity probably is, and then between what holds and what fails.",
    "repeat": "A level is tried again, because its verdict contradicts another.",
    "confirm": "A fresh, longer run at the highest level that holds. If it fails, the next lower level counts.",
    "people": "The rate that holds x (mean response time + think time).",
}


def _reading(found: Capacity) -> Section:
    """What the words in the report mean."""
    used = {word for probe in found.probes for word in (verdict(probe)[1], PURPOSES[probe.purpose])} | {"probably"}
    used |= {"people"} if found.has_text else set()
    used |= {"by the curve"} if "estimated" in (found.bracket.low_basis, found.bracket.high_basis) else set()
    pairs = [(name, text) for name, text in _WORDS.items() if used & set(name.split(", "))]
    metrics = {name for probe in found.probes for name in probe.latencies}
    pairs += [(TITLES[name], METRICS[name].definition) for name in TITLES if name in metrics and name in METRICS]
    return Section("reading", "How to read this", [page.facts(pairs)])
