"""The section about cost and efficiency: figures of a run or of each stage, the frontier, and the cheapest load for a rate per user.

The same figures and sentences are used by the console, Markdown, HTML and the report of a sweep.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from inferometer.analysis.efficiency import COMMODITIES, Commodity, Efficiency, Estimate
from inferometer.analysis.pareto import Answer, CheapestAt, Pareto, ParetoPoint
from inferometer.analysis.summary import Summary
from inferometer.report import formatting
from inferometer.report.document import Block, Note, Section, Table

TITLE = "cost and efficiency"
NAMES: dict[Commodity, str] = {
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "total_tokens": "tokens",
    "inferences": "inferences",
    "requests": "requests",
}
_SHORT: dict[Commodity, str] = {
    "input_tokens": "in",
    "output_tokens": "out",
    "total_tokens": "total",
    "inferences": "inferences",
    "requests": "requests",
}
_DOUBT = "?"
"""Marks what the intervals leave open."""
_MOST_ANSWERS = 4
"""Combinations of settings that a rate per user is answered for in words, the cheapest first."""
_CHARGE_NOTE = "each cost charges the whole price to those tokens alone: input and output do not add up"
_DOUBT_NOTE = f"{_DOUBT}: the intervals leave open whether it is on the frontier"


class Figure(NamedTuple):
    """One line of the section."""

    name: str
    short: str
    """The header of a narrow column."""
    estimate: Estimate | None
    is_money: bool = False

    @property
    def value(self) -> str:
        return self.format(None if self.estimate is None else self.estimate.value)

    @property
    def interval(self) -> str:
        """`1.2 .. 1.4`; empty if it has none."""
        low, high = (None, None) if self.estimate is None else self.estimate.ci
        return f"{self.format(low)} .. {self.format(high)}" if (low, high) != (None, None) else ""

    def format(self, value: float | None) -> str:
        return money(value) if self.is_money else formatting.number(value)


def figures(found: Efficiency) -> list[Figure]:
    """Every figure that the section may have; without an estimate for what is not known."""
    costs = [name for name in COMMODITIES if name in found.cost_per_million]
    if len(costs) > 1:
        costs.remove("requests")  # of interest only if nothing in them is counted
    return [
        Figure("output tokens/s/user", "tok/s/user", found.output_tokens_per_user),
        Figure("output tokens/s/GPU", "tok/s/GPU", found.output_tokens_per_gpu),
        Figure("input and output tokens/s/GPU", "all tok/s/GPU", found.total_tokens_per_gpu),
        Figure("inferences/s/GPU", "inf/s/GPU", found.inferences_per_gpu),
        *(
            Figure(
                f"{found.currency} per million {NAMES[name]}",
                f"{found.currency}/M {_SHORT[name]}",
                found.cost_per_million[name],
                is_money=True,
            )
            for name in costs
        ),
        Figure("output tokens/J", "tok/J", found.output_tokens_per_joule),
        Figure("inferences/J", "inf/J", found.inferences_per_joule),
    ]


def money(value: float | None) -> str:
    """Format an amount of money: two decimals, or three digits if it is less than 1."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) >= 0.9995 or value == 0:
        return f"{value:,.2f}"
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"


def describe_hardware(found: Efficiency) -> str:
    """What the figures are based on: `8 GPUs, 12.50 USD per hour`."""
    parts = []
    if found.gpus is not None:
        observed = " (observed)" if found.is_observed else ""
        parts.append(f"{found.gpus:,} GPU{'' if found.gpus == 1 else 's'}{observed}")
    if found.price_per_hour is not None:
        parts.append(f"{money(found.price_per_hour)} {found.currency} per hour")
    return ", ".join(parts)


# --- a run -----------------------------------------------------------------------------------------------------------


def cost(summary: Summary) -> Section:
    """The section of a run."""
    blocks: list[Block] = []
    if summary.efficiency is not None:
        blocks += [_efficiency(summary, summary.efficiency), *map(Note, notes(summary))]
    if summary.pareto is not None:
        blocks += answers(summary.pareto)
    return Section("cost", "Cost and efficiency", blocks)


def _efficiency(summary: Summary, found: Efficiency) -> Block:
    """A row per figure, with its interval; with several stages, a row per stage. Only the title if no figure is known."""
    if summary.stages:
        headers, rows = stage_rows(summary)
    else:
        headers = ["value", "95 % CI"]
        rows = [[each.name, each.value, each.interval] for each in figures(found) if each.estimate is not None]
    optional = [name for name in headers if name.startswith("all ") or name.endswith((" in", " total", "/J"))]
    return Table(TITLE, headers, rows, optional) if headers and rows else Note(TITLE)


def stage_rows(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of a table of stages: the figures that any stage has, and whether it is on the frontier."""
    named = [(stage.name, stage.efficiency) for stage in summary.stages if stage.efficiency is not None]
    by_stage = [{figure.short: figure for figure in figures(found)} for _, found in named]
    headers = list(
        dict.fromkeys(
            short for own in by_stage for short, figure in own.items() if any(_has(each, short) for each in by_stage)
        )
    )
    standing = {} if summary.pareto is None else {point.label: standing_of(point) for point in summary.pareto.points}
    has_frontier = len(standing) > 1
    rows = []
    for (name, _), own in zip(named, by_stage, strict=True):
        cells = [own[short].value if short in own else "-" for short in headers]
        rows.append([formatting.one_line(name, 24), *cells, *([standing.get(name, "-")] if has_frontier else [])])
    return [*headers, *(["frontier"] if has_frontier else [])], rows


def _has(own: dict[str, Figure], short: str) -> bool:
    return short in own and own[short].estimate is not None


def standing_of(point: ParetoPoint) -> str:
    """Whether a point is on the frontier, with a mark if the intervals leave it open."""
    return ("yes" if point.is_frontier else "no") + ("" if point.is_clear else _DOUBT)


def notes(summary: Summary) -> list[str]:
    """What the figures are based on, why some are missing, and which stages may not be quoted."""
    found = summary.efficiency
    if found is None:
        return []
    lines = [describe_hardware(found)]
    if len(found.cost_per_million) > 2:
        lines.append(_CHARGE_NOTE)
    lines += [f"not known: {reason}" for reason in _reasons(summary, found)]
    if summary.pareto is not None:
        lines += pareto_notes(summary.pareto)
    return [line for line in lines if line]


def _reasons(summary: Summary, found: Efficiency) -> list[str]:
    """Why figures are missing, each reason once; with the names of the stages if it is not that of all of them."""
    if not summary.stages:
        return [found.reason] if found.reason else []
    by_reason: dict[str, list[str]] = {}
    for stage in summary.stages:
        if stage.efficiency is not None and stage.efficiency.reason:
            by_reason.setdefault(stage.efficiency.reason, []).append(stage.name)
    return [
        reason if len(names) == len(summary.stages) else f"{', '.join(names)}: {reason}"
        for reason, names in by_reason.items()
    ]


def pareto_notes(pareto: Pareto) -> list[str]:
    """What a table or chart of the points needs to be understood."""
    lines = []
    if len(pareto.points) > 1 and not all(point.is_clear for point in pareto.points):
        lines.append(_DOUBT_NOTE)
    reasons = dict.fromkeys(pareto.left_out.values())
    for reason in reasons:
        names = [name for name, why in pareto.left_out.items() if why == reason]
        lines.append(f"left out of the frontier: {', '.join(names)} ({reason})")
    return lines


def answers(pareto: Pareto) -> list[Note]:
    """The cheapest load for each rate per user that was asked for."""
    return [
        Note(formatting.one_line(line, 1000), "") for each in pareto.cheapest_at for line in sentences(each, pareto)
    ]


def sentences(found: CheapestAt, pareto: Pareto) -> Iterator[str]:
    """The cheapest load for a rate per user in words; with several curves of a workload, the best and each other one."""
    workload = f" with {found.workload}" if found.workload else ""
    for index, answer in enumerate(found.answers[:_MOST_ANSWERS]):
        start = "  otherwise" if index else f"cheapest at {found.tokens_per_user:g} tokens/s/user{workload}"
        curve = f": {answer.curve}" if answer.curve != found.workload else ""
        yield f"{start}{curve}: {_describe(answer, pareto)}"
    if len(found.answers) > _MOST_ANSWERS:
        yield f"  and {len(found.answers) - _MOST_ANSWERS} more combinations, see --json"
    known = [answer for answer in found.answers if answer.hardware is not None]
    if len(known) > 1 and _overlap(*known[:2]):
        yield f"  no clear difference between {known[0].curve} and {known[1].curve}"


def _overlap(one: Answer, other: Answer) -> bool:
    """Whether the intervals of two answers overlap; also if one of them is not known."""
    pairs = [(one.hardware, other.hardware), (one.cost, other.cost)]
    a, b = pairs[1] if one.cost is not None and other.cost is not None else pairs[0]
    assert a is not None and b is not None
    (low_a, high_a), (low_b, high_b) = a.ci, b.ci
    if low_a is None or high_a is None or low_b is None or high_b is None:
        return True
    return low_a <= high_b and low_b <= high_a


def _describe(answer: Answer, pareto: Pareto) -> str:
    if answer.hardware is None:
        return answer.reason
    unit = "output tokens/s/GPU" if pareto.unit == "gpu" else "output tokens/s"
    parts = [_with_interval(Figure(unit, "", answer.hardware), unit)]
    if answer.cost is not None:
        name = f"{pareto.currency} per million output tokens"
        parts.insert(0, _with_interval(Figure(name, "", answer.cost, is_money=True), name))
    where = "between " + " and ".join(answer.between) if len(answer.between) > 1 else f"at {answer.between[0]}"
    bound = "; users see more than that at every measured load, so a higher load may be cheaper"
    return f"{', '.join(parts)}, {where}{bound if answer.is_lower_bound else ''}"


def _with_interval(figure: Figure, unit: str) -> str:
    interval = figure.interval.replace(" .. ", " to ")
    return f"{figure.value} {unit}{f' ({interval})' if interval else ''}"


# --- sweeps ----------------------------------------------------------------------------------------------------------


def sweep_cost(found: Pareto | None) -> Section:
    """The frontier and the answers of a sweep; nothing if no level has tokens per second and user, or no price or GPUs are known."""
    if found is None:
        return Section("cost", "Cost and efficiency", [])
    table = [pareto_table(found)] if found.points else []
    return Section("cost", "Cost and efficiency", [*table, *map(Note, pareto_notes(found)), *answers(found)])


def pareto_table(pareto: Pareto) -> Table:
    """A row per point."""
    headers, rows = pareto_rows(pareto)
    return Table(TITLE, headers, rows, ("95 % CI",))


def pareto_rows(pareto: Pareto) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of a table of the points."""
    unit = "tok/s/GPU" if pareto.unit == "gpu" else "tok/s"
    has_cost = any(point.cost is not None for point in pareto.points)
    rows = []
    for point in pareto.points:
        price = Figure("", "", point.cost, is_money=True)
        label = f"{point.curve}, {point.label}" if point.curve else point.label
        rows.append(
            [
                formatting.one_line(label, 48),
                Figure("", "", point.user).value,
                Figure("", "", point.hardware).value,
                *([price.value, price.interval] if has_cost else []),
                standing_of(point),
            ]
        )
    costs = [f"{pareto.currency}/M out", "95 % CI"] if has_cost else []
    return ["tok/s/user", unit, *costs, "frontier"], rows
