"""The charts of a search for the capacity: the search itself, and latencies, violations and throughput against the load."""

from collections.abc import Sequence
from typing import Any

from inferometer.analysis.slo_expression import parse
from inferometer.capacity_search.result import Capacity, Probe
from inferometer.capacity_search.search import Bracket, Status, Trial, bracket
from inferometer.report import formatting
from inferometer.report.capacity import PURPOSES, UNITS, amount
from inferometer.report.html import page
from inferometer.report.html.page import Block
from inferometer.report.html.parts import TITLES
from inferometer.units import format_number

_STATUSES: dict[Status, int] = {"holds": 2, "fails": 1, "undecided": 4}
"""The colour of each verdict, for charts without tones."""
_TONES = {"holds": "good", "fails": "bad", "undecided": "warn"}
_PERCENTILES = ("p50", "p90", "p99")
_MARGIN = 1.12
"""Space at the ends of an axis with levels, which is logarithmic."""


def search(found: Capacity) -> Block:
    """The levels over time, and how the interval closes in."""
    ends = [probe.at + probe.seconds for probe in found.probes]
    series: list[dict[str, Any]] = []
    for status, colour in _STATUSES.items():
        own = [probe.status == status for probe in found.probes]
        if not any(own):
            continue
        series.append(
            {
                "name": status,
                "colour": colour,
                "tone": _TONES[status],
                "points": True,
                "scatter": True,
                "x": page.rounded(ends),
                "y": page.rounded(probe.level if is_own else None for probe, is_own in _pairs(found.probes, own)),
                "ex": [
                    page.rounded((probe.at, end)) if is_own else [None, None]
                    for (probe, is_own), end in zip(_pairs(found.probes, own), ends, strict=True)
                ],
                "hollow": [status == "undecided"] * len(ends),
                "labels": [_label(found, number, probe) for number, probe in enumerate(found.probes, 1)],
            }
        )
    interval = _interval(found, ends)
    series = ([interval] if interval["x"] else []) + series  # the band is behind the probes
    return page.chart(
        "How the search closed in.",
        "Each bar is a probe, from its start to its verdict. The band is the interval between the highest level shown to hold "
        "and the lowest shown to fail; the line in it is the estimate.",
        {
            "kind": "xy",
            "height": 340,
            "x": {
                "label": "seconds since the search began",
                "min": 0,
                "max": round(max([*ends, found.seconds]) * 1.03, 3),
            },
            "y": {"label": f"{UNITS[found.by]} (logarithmic)", "scale": "log"},
            "series": series,
        },
    )


def _pairs(probes: Sequence[Probe], own: Sequence[bool]) -> list[tuple[Probe, bool]]:
    return list(zip(probes, own, strict=True))


def _label(found: Capacity, number: int, probe: Probe) -> str:
    return (
        f"probe {number}, {PURPOSES[probe.purpose]}: {amount(probe.level)} {UNITS[found.by]} "
        f"{probe.status}{' (overloaded)' if probe.overloaded else ''}"
    )


def _interval(found: Capacity, ends: Sequence[float]) -> dict[str, Any]:
    """The interval after each probe, as a band with steps: at the end of a probe there is a point before and one after."""
    trials = [
        Trial(level=p.level, purpose=p.purpose, status=p.status, seconds=p.seconds, excess=p.excess)
        for p in found.probes
    ]
    steps: list[tuple[float, Bracket]] = []
    for count, end in enumerate(ends, 1):
        steps += [(end, steps[-1][1])] if steps else []
        steps.append((end, bracket(trials[:count])))
    steps += [(max(found.seconds, ends[-1] * 1.02), steps[-1][1])] if steps else []
    known = [(at, one) for at, one in steps if one.low is not None and one.high is not None]
    return {
        "name": "interval so far",
        "colour": 0,
        "faint": True,
        "x": page.rounded(at for at, _ in known),
        "y": page.rounded(one.estimate for _, one in known),
        "lo": page.rounded(one.low for _, one in known),
        "hi": page.rounded(one.high for _, one in known),
    }


# --- against the level -----------------------------------------------------------------------------------------------


def violations(found: Capacity) -> list[Block]:
    """The share of requests that violate each objective, which is what decides a probe; nothing if none is judged by that."""
    probes = _by_level(found)
    series = []
    limits: dict[float, list[str]] = {}
    for objective in found.slos:
        if not any(objective in probe.violations for probe in probes):
            continue
        series.append(
            _series(
                found, probes, formatting.one_line(objective, 60), [probe.violations.get(objective) for probe in probes]
            )
        )
        allowed = next((one.allowed for p in probes for one in p.slos if one.slo == objective and one.allowed), None)
        if allowed is not None:
            limits.setdefault(allowed, []).append(objective)
    if not series:
        return []
    return [
        page.chart(
            "Requests that violate an objective.",
            "A probe holds if the share is shown to be below the dashed line, and fails if it is shown to be above. "
            "Hollow: undecided.",
            {
                "kind": "xy",
                "height": 280,
                "x": _axis(found),
                "y": {"label": "share of the requests", "format": "share", "min": 0},
                "series": [one | {"colour": index} for index, one in enumerate(series)],
                "hlines": [
                    {"at": at, "label": f"{format_number(100 * at, 3)} % may"} for at, _ in sorted(limits.items())
                ],
                "vlines": _ends(found),
            },
        )
    ]


def latencies(found: Capacity) -> list[Block]:
    """Percentiles of each latency against the level, one pane per metric."""
    probes = _by_level(found)
    names = [name for name in TITLES if any(name in probe.latencies for probe in probes)]
    panes: dict[str, Sequence[Block]] = {name: [_latency(found, probes, name)] for name in names}
    limiting = (found.limited_by or "").rpartition(": ")[2].partition(".")[0]
    names.sort(key=lambda name: name != limiting)  # what limits the server comes first
    return (
        [page.tabs([[(name, TITLES[name]) for name in names]], {name: panes[name] for name in names})] if names else []
    )


def _latency(found: Capacity, probes: list[Probe], name: str) -> Block:
    series = []
    for colour, column in enumerate(_PERCENTILES):
        each = [probe.latencies.get(name) for probe in probes]
        values = [None if one is None else getattr(one, column) for one in each]
        made = _series(found, probes, column, [None if value is None else 1e3 * value for value in values])
        few = [one is not None and column in one.unsupported for one in each]
        hollow = [probe.overloaded or is_few for probe, is_few in zip(probes, few, strict=True)]
        series.append(made | {"colour": colour, "hollow": hollow})
    return page.chart(
        f"{TITLES[name]} against {UNITS[found.by]}.",
        "One point per probe. Hollow: too few values, or the server was overloaded and has no steady latency.",
        {
            "kind": "xy",
            "height": 320,
            "x": _axis(found),
            "y": {"label": "ms (logarithmic)", "scale": "log"},
            "series": series,
            "hlines": _limits(found, name),
            "vlines": _ends(found),
        },
    )


def throughput(found: Capacity) -> list[Block]:
    """What the server completed at each level."""
    probes = _by_level(found)
    rates = {"throughput": "requests/s", "output_tokens": "output tokens/s", "inferences": "inferences/s"}
    if found.has_text:
        del rates["inferences"]
    else:
        del rates["output_tokens"]
    panes: dict[str, Sequence[Block]] = {}
    for field, unit in rates.items():
        values = [getattr(probe, field) for probe in probes]
        if all(value is None for value in values):
            continue
        series = [_series(found, probes, "completed", values) | {"colour": 0}]
        if field == "throughput" and found.by == "rate":
            levels = page.rounded(probe.level for probe in probes)
            series.insert(0, {"name": "offered", "colour": 7, "dash": True, "x": levels, "y": levels})
        chart = page.chart(
            f"Completed {unit} against {'offered ' if found.by == 'rate' else ''}{UNITS[found.by]}.",
            "It follows the load as long as the server keeps up. Hollow: undecided; in a short probe the figure is rough."
            if found.by == "rate"
            else "More in flight is of use until this no longer grows.",
            {
                "kind": "xy",
                "height": 280,
                "x": _axis(found),
                "y": {"label": unit, "min": 0},
                "series": series,
                "vlines": _ends(found),
            },
        )
        panes[field] = [chart]
    return [page.tabs([[(name, rates[name]) for name in panes]], panes)] if panes else []


def _by_level(found: Capacity) -> list[Probe]:
    return sorted(found.probes, key=lambda probe: (probe.level, probe.at))


def _series(found: Capacity, probes: list[Probe], name: str, values: Sequence[float | None]) -> dict[str, Any]:
    numbers = {id(probe): number for number, probe in enumerate(found.probes, 1)}
    return {
        "name": name,
        "points": True,
        "x": page.rounded(probe.level for probe in probes),
        "y": page.rounded(values),
        "labels": [_label(found, numbers[id(probe)], probe) for probe in probes],
        "hollow": [probe.status == "undecided" for probe in probes],
    }


def _axis(found: Capacity) -> dict[str, Any]:
    """The levels, on a logarithmic axis: the search takes steps by factors."""
    levels = [probe.level for probe in found.probes]
    return {
        "label": f"{'offered ' if found.by == 'rate' else ''}{UNITS[found.by]} (logarithmic)",
        "scale": "log",
        "min": round(min(levels) / _MARGIN, 6),
        "max": round(max(levels) * _MARGIN, 6),
        "unit": UNITS[found.by],
    }


def _ends(found: Capacity) -> list[dict[str, Any]]:
    """The ends of the interval, as vertical lines."""
    ends = ((found.bracket.low, "holds", "good", 0), (found.bracket.high, "fails", "", 1))
    return [
        {"at": level, "label": f"{word} {amount(level)}", "tone": tone, "row": row}
        for level, word, tone, row in ends
        if level is not None
    ]


def _limits(found: Capacity, metric: str) -> list[dict[str, Any]]:
    """The objectives for a latency, as lines in ms."""
    lines = []
    results = {one.slo: one for probe in found.probes for one in probe.slos}
    for objective in found.slos:
        result = results.get(objective)
        if result is None:
            continue
        parsed = parse(result.expression)
        pairs = [(parsed.name, parsed.threshold)] if parsed.kind == "metric" else []
        pairs += [(condition.metric, condition.threshold) for condition in parsed.conditions]
        lines += [
            {"at": threshold.value * 1e3, "label": formatting.one_line(objective, 60)}
            for name, threshold in pairs
            if name == metric
        ]
    return lines
