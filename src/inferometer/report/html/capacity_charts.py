"""The charts of a search for the capacity: closed loops and probes in one picture, the search over time, and the load curve."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from inferometer.analysis.slo_expression import TIME_UNITS, parse
from inferometer.analysis.slo_result import SloResult
from inferometer.capacity_search.result import Capacity, Probe
from inferometer.report import formatting
from inferometer.report.capacity import PURPOSES, UNITS, amount, reason, verdict
from inferometer.report.html import page
from inferometer.report.html.page import Block
from inferometer.report.html.parts import TITLES

_TONES = {"good": "holds", "bad": "fails", "warn": "undecided"}
"""The series of the probes, by the tone of their verdict."""
_COLOURS = {"good": 2, "bad": 1, "warn": 4}
_CURVE, _PALE = 0, 7
_PERCENTILES = ("p50", "p90", "p99")
_MARGIN, _FAR = 1.12, 8
"""Space at the ends of an axis with levels, and from how much between them on it is logarithmic."""
Value = Callable[[Probe], float | None]


# --- the picture -----------------------------------------------------------------------------------------------------


def picture(found: Capacity) -> list[Block]:
    """What each closed loop and each probe measured, against the load: a pane for each objective, the limiting one first."""
    if not any(map(found.level_of, found.probes)):
        return []
    results = {one.slo: one for probe in found.probes for one in probe.slos}
    limiting = sorted(found.slos, key=lambda slo: not (found.limited_by and slo.startswith(found.limited_by)))
    panes = {slo: [_objective(found, results[slo])] for slo in limiting if slo in results}
    return [page.tabs([[(slo, formatting.one_line(slo, 60)) for slo in panes]], panes)] if panes else []


def _objective(found: Capacity, result: SloResult) -> Block:
    """The measured value of an objective; the share of violations if it has no value of its own."""
    objective = parse(result.expression)
    is_value = objective.kind == "metric"
    name = f"{TITLES.get(objective.name, objective.name)} {objective.statistic}" if is_value else result.expression
    unit = objective.threshold.unit
    factor = objective.threshold.number / result.limit if is_value and result.limit else 1.0
    is_log = is_value and unit in TIME_UNITS

    def value(probe: Probe) -> float | None:
        own = next((one for one in probe.slos if one.slo == result.slo), None)
        if not is_value:
            return probe.violations.get(result.slo)
        if own is not None and own.value is not None and math.isfinite(own.value):
            return own.value * factor
        one = probe.latencies.get(objective.name)
        # An overload has no steady value, but what was measured shows how far off it is.
        rough = None if one is None else getattr(one, objective.statistic, one.p90)
        return None if rough is None else rough * factor

    limit = result.limit * factor if is_value else result.allowed
    return page.chart(
        f"{name} against the load.",
        "The line: short closed loops, each with its number of requests in flight, at the load that the server served. Points: probes, "
        "coloured by their verdict; hollow if it is only likely, or undecided. Shaded: the interval.",
        {
            "kind": "xy",
            "height": 380,
            "bands": _band(found),
            "x": _axis(found, [probe for probe in found.probes if value(probe) is not None]),
            "y": {"label": f"{name}, {unit} (logarithmic)", "scale": "log", **_room([*map(value, found.probes), limit])} if is_log
            else {"label": name if is_value else "share of violations", "format": "number" if is_value else "share", "min": 0},
            "series": [*_curve(found, value), *_by_verdict(found, value)],
            "marks": _in_flight(found, value),
            "hlines": [] if limit is None else [{"at": limit, "label": result.slo}],
            "vlines": _ends(found),
        },
    )  # fmt: skip


def _room(values: Sequence[float | None]) -> dict[str, float]:
    """The ends of a logarithmic axis, with room for the names of lines at its top."""
    known = [value for value in values if value]
    return {"min": round(min(known) / 1.3, 9), "max": round(max(known) * 2, 9)} if known else {}


def _curve(found: Capacity, value: Value) -> list[dict[str, Any]]:
    """The closed loops as a line, in the order of their number in flight: it turns back if throughput falls."""
    known = _known_loops(found, value)
    return [_points(found, known, value) | {"name": "closed loops", "colour": _CURVE, "hollow": []}] if known else []


def _in_flight(found: Capacity, value: Value) -> list[dict[str, Any]]:
    return [
        {"series": 0, "x": found.level_of(probe), "y": value(probe), "colour": _CURVE, "label": f"{probe.level:,.0f} in flight"}
        for probe in _known_loops(found, value)
    ]  # fmt: skip


def _known_loops(found: Capacity, value: Value) -> list[Probe]:
    return [probe for probe in found.curve if value(probe) is not None and found.level_of(probe)]


def _by_verdict(found: Capacity, value: Value) -> list[dict[str, Any]]:
    """The probes as points, a series for each verdict."""
    series = []
    for tone, name in _TONES.items():
        own = [probe for probe in found.levels if verdict(probe)[2] == tone and value(probe) is not None]
        if own:
            series.append(
                _points(found, own, value) | {"name": name, "tone": tone, "colour": _COLOURS[tone], "scatter": True}
            )
    return series


def _points(found: Capacity, probes: Sequence[Probe], value: Value) -> dict[str, Any]:
    return {
        "points": True,
        "x": page.rounded(map(found.level_of, probes)),
        "y": page.rounded(map(value, probes)),
        "labels": [_label(found, probe) for probe in probes],
        "hollow": [not probe.is_sure or probe.status == "undecided" for probe in probes],
    }


def _label(found: Capacity, probe: Probe) -> str:
    number = found.probes.index(probe) + 1
    what = f"{amount(probe.level)} {UNITS['concurrency' if probe.purpose == 'explore' else found.by]}"
    return f"probe {number}, {PURPOSES[probe.purpose]}: {what}, {verdict(probe)[1]}, {reason(probe)}"


def _band(found: Capacity) -> list[dict[str, Any]]:
    """The interval, from end to end."""
    low, high = found.bracket.low, found.bracket.high
    return [] if low is None or high is None else [{"from": low, "to": high, "label": ""}]


def _ends(found: Capacity) -> list[dict[str, Any]]:
    """The ends of the interval, as vertical lines."""
    ends = (
        (found.bracket.low, "holds", found.bracket.low_basis, "good", 0),
        (found.bracket.high, "fails", found.bracket.high_basis, "", 1),
    )
    texts = {"shown": "{word} {at}", "likely": "likely {word} {at}", "estimated": "{at} by the curve"}
    return [
        {"at": level, "label": texts[basis].format(word=word, at=amount(level)), "tone": tone, "row": row}
        for level, word, basis, tone, row in ends
        if level is not None
    ]


def _axis(found: Capacity, probes: Sequence[Probe]) -> dict[str, Any]:
    """The levels, on a logarithmic axis if they are far apart."""
    levels = [level for probe in probes if (level := found.level_of(probe))]
    levels += [end for end in (found.bracket.low, found.bracket.high) if end]
    low, high = min(levels, default=1.0), max(levels, default=1.0)
    is_log = high > _FAR * low
    names = UNITS[found.by]
    if found.by == "rate" and any(probe.purpose == "explore" for probe in probes):
        names += ": offered by probes, served to closed loops"
    return {
        "label": f"{names}{' (logarithmic)' if is_log else ''}",
        "scale": "log" if is_log else "linear",
        "min": round(low / _MARGIN, 6),
        "max": round(high * _MARGIN, 6),
        "unit": UNITS[found.by],
    }


# --- the search over time --------------------------------------------------------------------------------------------


def search(found: Capacity) -> list[Block]:
    """The levels over time, and how the interval narrows."""
    if not any(map(found.level_of, found.probes)):
        return []
    ends = [probe.at + probe.seconds for probe in found.probes]
    series = [_interval(found, ends)]
    groups = [("closed loop", "", _PALE), *((name, tone, _COLOURS[tone]) for tone, name in _TONES.items())]
    for name, tone, colour in groups:
        chosen = [
            probe if tone == ("" if probe.purpose == "explore" else verdict(probe)[2]) else None
            for probe in found.probes
        ]
        if any(chosen):
            series.append({
                "name": name, "colour": colour, **({"tone": tone} if tone else {}), "points": True, "scatter": True,
                "x": page.rounded(ends),
                "y": page.rounded(None if probe is None else found.level_of(probe) for probe in chosen),
                "ex": [[None, None] if probe is None else page.rounded((probe.at, end)) for probe, end in zip(chosen, ends, strict=True)],
                "hollow": [not probe.is_sure or probe.status == "undecided" for probe in found.probes],
                "labels": [_label(found, probe) for probe in found.probes],
            })  # fmt: skip
    chart = page.chart(
        "How the search closed in.",
        "Each bar is a closed loop or a probe, from its start to its verdict. The band is the interval so far: at first by the curve of the "
        "closed loops alone, then by what the probes show.",
        {
            "kind": "xy",
            "height": 320,
            "x": {"label": "seconds since the search began", "min": 0, "max": round(max([*ends, found.seconds]) * 1.03, 3)},
            "y": {"label": f"{UNITS[found.by]} (logarithmic)", "scale": "log"},
            "series": [one for one in series if one["x"]],
        },
    )  # fmt: skip
    return [chart]


def _interval(found: Capacity, ends: Sequence[float]) -> dict[str, Any]:
    """The interval after each probe, as a band with steps: each lasts from the end of its probe to the end of the next."""
    steps = zip(found.probes, ends, [*ends[1:], max(found.seconds, ends[-1] * 1.02)], strict=True) if ends else []
    known = [(at, one) for one, end, until in steps if one.low and one.high for at in (end, until)]
    return {
        "name": "interval so far",
        "colour": _CURVE,
        "faint": True,
        "x": page.rounded(at for at, _ in known),
        "y": [None] * len(known),
        "lo": page.rounded(one.low for _, one in known),
        "hi": page.rounded(one.high for _, one in known),
    }


# --- against the level -----------------------------------------------------------------------------------------------


def latencies(found: Capacity) -> list[Block]:
    """Percentiles of each latency against the level, one pane per metric, what limits the server first."""
    probes = sorted(found.levels, key=lambda probe: (probe.level, probe.at))
    names = [name for name in TITLES if any(name in probe.latencies for probe in probes)]
    limiting = (found.limited_by or "").rpartition(": ")[2].partition(".")[0]
    names.sort(key=lambda name: name != limiting)
    panes: dict[str, Sequence[Block]] = {name: [_latency(found, probes, name)] for name in names}
    return [page.tabs([[(name, TITLES[name]) for name in names]], panes)] if names else []


def _latency(found: Capacity, probes: list[Probe], name: str) -> Block:
    def milliseconds(column: str) -> Value:
        def value(probe: Probe) -> float | None:
            seconds = getattr(probe.latencies.get(name), column, None)
            return None if seconds is None else 1e3 * seconds

        return value

    series = []
    for colour, column in enumerate(_PERCENTILES):
        few = [name in probe.latencies and column in probe.latencies[name].unsupported for probe in probes]
        hollow = [probe.overloaded or is_few for probe, is_few in zip(probes, few, strict=True)]
        series.append(
            _points(found, probes, milliseconds(column)) | {"name": column, "colour": colour, "hollow": hollow}
        )
    return page.chart(
        f"{TITLES[name]} against {UNITS[found.by]}.",
        "One point per probe. Hollow: too few values, or the server was overloaded and has no steady latency.",
        {
            "kind": "xy",
            "height": 320,
            "bands": _band(found),
            "x": _axis(found, probes),
            "y": {"label": "ms (logarithmic)", "scale": "log"},
            "series": series,
            "hlines": _limits(found, name),
            "vlines": _ends(found),
        },
    )


def throughput(found: Capacity) -> list[Block]:
    """The curve: what the server served at each number of requests in flight."""
    rates = {"throughput": "requests/s", "inferences": "inferences/s"}
    if found.has_text:
        rates = {"throughput": "requests/s", "output_tokens": "output tokens/s"}
    panes: dict[str, Sequence[Block]] = {}
    for field, unit in rates.items():
        known = [probe for probe in found.curve if getattr(probe, field) is not None]
        if not known:
            continue
        points = {
            "name": "closed loops", "colour": _CURVE, "points": True, "x": page.rounded(probe.level for probe in known),
            "y": page.rounded(getattr(probe, field) for probe in known), "labels": [_label(found, probe) for probe in known],
            "hollow": [probe.status == "fails" for probe in known],
        }  # fmt: skip
        panes[field] = [
            page.chart(
                f"Served {unit} against requests in flight.",
                "More in flight is of use until this no longer grows. Hollow: an objective was violated. Each point is a few seconds long.",
                {
                    "kind": "xy",
                    "height": 260,
                    "x": {"label": "requests in flight (logarithmic)", "scale": "log", "min": known[0].level / _MARGIN,
                          "max": known[-1].level * _MARGIN, "ticks": [probe.level for probe in known], "unit": "in flight"},
                    "y": {"label": unit, "min": 0},
                    "series": [points],
                },
            )
        ]  # fmt: skip
    return [page.tabs([[(name, rates[name]) for name in panes]], panes)] if panes else []


def _limits(found: Capacity, metric: str) -> list[dict[str, Any]]:
    """The objectives for a latency, as lines in ms."""
    results = {one.slo: parse(one.expression) for probe in found.probes for one in probe.slos}
    pairs = [(slo, one.name, one.threshold) for slo, one in results.items() if one.kind == "metric"]
    pairs += [(slo, part.metric, part.threshold) for slo, one in results.items() for part in one.conditions]
    return [
        {"at": limit.value * 1e3, "label": formatting.one_line(slo, 60)} for slo, name, limit in pairs if name == metric
    ]
