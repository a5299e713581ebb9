"""The section about cost and efficiency, and the chart of what users see against what the hardware delivers."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from inferometer.analysis.pareto import Pareto
from inferometer.analysis.summary import Summary
from inferometer.report import cost, formatting
from inferometer.report.document import Section
from inferometer.report.html import page
from inferometer.report.html.page import Block


def efficiency(summary: Summary) -> Section:
    """Costs, rates per GPU and per user; with several stages also the frontier. Empty if neither price nor hardware is known."""
    chart = [pareto_chart(summary.pareto)] if summary.pareto is not None and len(summary.pareto.points) > 1 else []
    section = cost.cost(summary)
    return msgspec.structs.replace(section, blocks=[*chart, *section.blocks])


def pareto_chart(pareto: Pareto, looks: Mapping[str, Mapping[str, object]] = MappingProxyType({})) -> Block:
    """Output tokens per second and GPU against those per second and user: a line per curve, a point per level, and the frontier.

    `looks` are names and colours of the curves that differ from the default.
    """
    unit = "output tokens/s/GPU" if pareto.unit == "gpu" else "output tokens/s, all servers"
    series = []
    curves = list(dict.fromkeys(point.curve for point in pareto.points))
    for colour, curve in enumerate(curves):
        own = sorted((point for point in pareto.points if point.curve == curve), key=lambda point: point.user.value)
        series.append(
            {
                "name": formatting.one_line(curve or "measured", 60),
                "colour": colour % page.COLOURS,
                **looks.get(curve, {}),
                "x": page.rounded(point.user.value for point in own),
                "y": page.rounded(point.hardware.value for point in own),
                "lo": page.rounded(point.hardware.ci[0] for point in own),
                "hi": page.rounded(point.hardware.ci[1] for point in own),
                "ex": [page.rounded(point.user.ci) for point in own],
                "hollow": [not point.is_frontier for point in own],
                "labels": [
                    _label(point.label, cost.money(point.cost.value) if point.cost else "", pareto) for point in own
                ],
                "points": True,
            }
        )
    series += [*_frontiers(pareto), *_answer_series(pareto)]
    rates = dict.fromkeys(each.tokens_per_user for each in pareto.cheapest_at)
    wanted = [{"at": rate, "label": f"{rate:g}/user"} for rate in rates]
    return page.chart(
        f"{unit[:1].upper()}{unit[1:]} against output tokens/s/user.",
        "Up is cheaper, right is faster for each user. Bars are 95 % confidence intervals. Hollow: another point is better in both.",
        {
            "kind": "xy",
            "height": 320,
            "x": {"label": "output tokens/s/user (median)", "min": 0, "pad": True},
            "y": {"label": unit, "min": 0},
            "series": series,
            "vlines": wanted,
        },
    )


def _frontiers(pareto: Pareto) -> list[Block]:
    """The frontier of each workload that has several curves."""
    found = []
    for workload in dict.fromkeys(point.workload for point in pareto.points):
        own = [point for point in pareto.points if point.workload == workload]
        best = sorted((point for point in own if point.is_frontier), key=lambda point: point.user.value)
        if len({point.curve for point in own}) > 1:
            found.append(
                {
                    "name": formatting.one_line(f"frontier, {workload}" if workload else "frontier", 60),
                    "colour": 7,
                    "dash": True,
                    "x": page.rounded(point.user.value for point in best),
                    "y": page.rounded(point.hardware.value for point in best),
                }
            )
    return found


def _answer_series(pareto: Pareto) -> list[Block]:
    """The answers that were interpolated, a series for each rate per user: the best of all curves, with its interval, for each workload."""
    series = []
    for wanted in dict.fromkeys(each.tokens_per_user for each in pareto.cheapest_at):
        found = [
            (each.workload, each.answers[0], each.answers[0].hardware)
            for each in pareto.cheapest_at
            if each.tokens_per_user == wanted and not each.answers[0].is_lower_bound
        ]
        known = [(workload, answer, hardware) for workload, answer, hardware in found if hardware is not None]
        if known:
            series.append(
                {
                    "name": f"cheapest at {wanted:g}",
                    "colour": 6,
                    "scatter": True,
                    "x": page.rounded(wanted for _ in known),
                    "y": page.rounded(hardware.value for _, _, hardware in known),
                    "lo": page.rounded(hardware.ci[0] for _, _, hardware in known),
                    "hi": page.rounded(hardware.ci[1] for _, _, hardware in known),
                    "labels": [
                        formatting.one_line(f"{workload}{': ' if workload else ''}{' – '.join(answer.between)}", 80)
                        for workload, answer, _ in known
                    ],
                    "points": True,
                }
            )
    return series


def _label(name: str, price: str, pareto: Pareto) -> str:
    return formatting.one_line(f"{name}: {price} {pareto.currency} per million" if price else name, 80)
