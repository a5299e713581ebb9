"""The HTML page of a comparison: the answer, ratios with intervals, distributions over each other, each run's values, all figures."""

import math
from collections.abc import Callable, Mapping, Sequence

from inferometer.analysis import settings
from inferometer.analysis.comparison import Compared, Comparison, MetricComparison
from inferometer.analysis.comparison_text import title
from inferometer.analysis.fail_if import parse as parse_condition
from inferometer.analysis.run_figures import FAILURE_RATE
from inferometer.report import formatting
from inferometer.report.compare import amount, shown, stages_of
from inferometer.report.document import Section
from inferometer.report.html import overlays, page
from inferometer.report.html.compare_background import how_to_read, what_was_compared
from inferometer.report.html.page import Block, Page, render
from inferometer.report.html.parts import limits, parts
from inferometer.units import format_number

_TONES = {"better": "good", "worse": "bad", "no clear difference": "plain"}
_SIGNS = {"better": ("✓", "good"), "worse": ("✗", "bad"), "no clear difference": ("=", "soft")}
_CONDITIONS = {"passes": ("✓", "good"), "fails": ("✗", "bad"), "undecided": ("?", "warn")}
_HEADLINES = (
    "ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "e2e.p50", "e2e.p99",
    "throughput.output_tokens", "throughput.inferences", "throughput.requests", "goodput", FAILURE_RATE,
)  # fmt: skip
"""The figures of the answer, besides those that a condition or an objective names."""


def encode(compared: Sequence[Compared]) -> bytes:
    """One page for the comparisons of B, C ... with A."""
    return render(compare_page(compared))


def compare_page(compared: Sequence[Compared]) -> Page:
    """The report, before it is rendered."""
    first = compared[0]
    manifest = first.a.runs[0][0].manifest
    labels = overlays.short_labels([first.a.label, *(each.b.label for each in compared)])
    others = ", ".join(formatting.one_line(label, 60) for label in labels[1:])
    load = formatting.describe_load(manifest.plan[0]) if len(manifest.plan) == 1 else f"{len(manifest.plan)} stages"
    model = str(settings.text(manifest, "server", "model") or "")
    return Page(
        title=formatting.one_line(f"{others} against {labels[0]}", 160),
        subtitle=" · ".join(filter(None, (model, formatting.describe_api(manifest), load))),
        sections=sections(compared),
        footer=f"Made by inferometer {first.found.inferometer}. This file works without a network.",
        version=first.found.inferometer,
    )


def sections(compared: Sequence[Compared]) -> list[Section]:
    return [
        Section("answer", "Answer", [block for number, each in enumerate(compared, 1) for block in _answer(each, number, len(compared))]),
        _conditions(compared),
        Section(
            "ratios", "Ratios", _by_side_and_stage(compared, lambda letter, each, metrics: [_forest(letter, each, metrics)]),
            "By how much each figure differs from that of A, with its 95 % confidence interval. An interval that does not touch the line shows a difference.",
        ),
        _distributions(compared),
        _runs(compared),
        Section(
            "figures", "All figures", _by_side_and_stage(compared, _figures),
            "Every figure that was measured on both sides.",
        ),
        what_was_compared(compared),
        how_to_read(compared),
    ]  # fmt: skip


def _by_side_and_stage(
    compared: Sequence[Compared], make: Callable[[str, Compared, Mapping[str, MetricComparison]], Sequence[Block]]
) -> list[Block]:
    """Blocks for each comparison and stage, with switches if there are several."""
    panes: dict[str, Sequence[Block]] = {}
    stages = [name for name, _ in stages_of(compared[0].found)]
    for number, each in enumerate(compared):
        for index, (_, metrics) in enumerate(stages_of(each.found)):
            panes[f"{number}|{index}"] = make(overlays.letter(number + 1), each, metrics)
    switches = [
        [(str(number), f"{overlays.letter(number + 1)} against A") for number in range(len(compared))],
        [(str(index), name) for index, name in enumerate(stages)],
    ]
    return [page.tabs(switches, panes)] if len(panes) > 1 else list(next(iter(panes.values())))


# --- the answer ------------------------------------------------------------------------------------------------------


def _headlines(metrics: Mapping[str, MetricComparison]) -> dict[str, MetricComparison]:
    """The figures of the answer: those that a condition or an objective names, and the usual ones that could be compared."""
    order = dict.fromkeys([*_HEADLINES, *metrics])
    return {
        name: metrics[name]
        for name in order
        if name in metrics
        and (metrics[name].p_holm is not None or (name in _HEADLINES and _is_compared(metrics[name])))
    }


def _is_compared(one: MetricComparison) -> bool:
    return one.method is not None or one.difference is not None or one.verdict != "no clear difference"


def _answer(each: Compared, number: int, count: int) -> list[Block]:
    letter = overlays.letter(number)
    blocks: list[Block] = (
        [page.heading(f"{letter} against A: {formatting.one_line(each.b.label, 120)}")] if count > 1 else []
    )
    chosen = [(stage, _headlines(metrics)) for stage, metrics in stages_of(each.found)]
    blocks.append(_verdict(letter, each.found, [one for _, metrics in chosen for one in metrics.values()]))
    for stage, metrics in chosen:
        if stage:
            blocks.append(page.heading(formatting.one_line(stage, 80)))
        if metrics and len(chosen) == 1 and count == 1:
            blocks.append(page.cards([_card(name, one) for name, one in metrics.items()]))
        lines = [page.item(*_SIGNS[one.verdict], _capital(one.sentence)) for one in metrics.values()]
        blocks.append(page.items(lines) if lines else page.note("No headline figure could be compared."))
    return blocks


def _verdict(letter: str, found: Comparison, metrics: Sequence[MetricComparison]) -> Block:
    """The badge: whether conditions hold, or else which way the clear differences point."""
    verdicts = [_SMALL if _is_small(one) else one.verdict for one in metrics]
    counts = {verdict: verdicts.count(verdict) for verdict in (*_TONES, _SMALL)}
    words = [f"{count} {_COUNTED.get(verdict, verdict)}" for verdict, count in counts.items() if count]
    text = f"Of {len(metrics)} headline figures: {', '.join(words)}." if metrics else "There is no figure to compare."
    if found.conditions:
        statuses = [each.status for each in found.conditions]
        badge, tone = next((badge for status, badge in _GATES.items() if status in statuses), ("PASSES", "good"))
        conditions = [f"{statuses.count(status)} {status}" for status in _CONDITIONS if status in statuses]
        return _badge(badge, tone, f"Of {len(statuses)} conditions: {', '.join(conditions)}. {text}")
    if counts["better"] and counts["worse"]:
        return _badge(f"{letter} IS BETTER IN {counts['better']}, WORSE IN {counts['worse']}", "warn", text)
    if counts["better"] or counts["worse"]:
        word = "better" if counts["better"] else "worse"
        return _badge(f"{letter} IS {word.upper()}", _TONES[word], text)
    return _badge("NO CLEAR DIFFERENCE", "plain", text)


def _is_small(one: MetricComparison) -> bool:
    """Whether a clear difference is too small to decide which side is better as a whole."""
    return one.verdict != "no clear difference" and one.ratio is not None and abs(one.ratio - 1) < 0.01


_SMALL = "clearly but less than 1 % different"
_COUNTED = {"no clear difference": "without a clear difference"}
_GATES = {"fails": ("FAILS", "bad"), "undecided": ("UNDECIDED", "warn")}


def _badge(words: str, tone: str, text: str) -> Block:
    return {"kind": "verdict", "tone": tone, "words": words, "text": text}


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _card(name: str, one: MetricComparison) -> dict[str, str]:
    change = _change(one)
    tone = "soft" if one.verdict == "no clear difference" else _TONES[one.verdict]
    return page.card(
        overlays.short_title(name),
        change,
        "",
        f"{amount(one.a, one.unit)} → {amount(one.b, one.unit)}",
        tone,
    )


def _change(one: MetricComparison) -> str:
    if one.difference is not None:
        return f"{_signed(100 * one.difference)} pp"
    return "–" if one.ratio is None else _percent(one.ratio)


def _percent(ratio: float) -> str:
    """`−12 %`, or `2.3 ×` from the double on."""
    if ratio >= 2:
        return f"{format_number(ratio, 3)} ×"
    return f"{_signed(100 * (ratio - 1))} %"


def _signed(value: float) -> str:
    decimals = 2 if abs(value) < 1 else 1 if abs(value) < 10 else 0
    text = f"{abs(value):.{decimals}f}"
    return "0" if float(text) == 0 else f"{'−' if value < 0 else '+'}{text}"


def _conditions(compared: Sequence[Compared]) -> Section:
    """The conditions of --fail-if, and how each was judged."""
    blocks: list[Block] = []
    for number, each in enumerate(compared, 1):
        if not each.found.conditions:
            continue
        if len(compared) > 1:
            blocks.append(page.heading(f"{overlays.letter(number)} against A"))
        lines = []
        for one in each.found.conditions:
            where = f"{formatting.one_line(one.stage, 60)}: " if one.stage else ""
            lines.append(page.item(*_CONDITIONS[one.status], f"{where}{one.status}: {one.reason}.", one.condition))
        blocks.append(page.items(lines))
    return Section(
        "conditions", "Conditions", blocks, "The conditions of --fail-if, and what the runs show with 95 % confidence."
    )


# --- ratios ----------------------------------------------------------------------------------------------------------


def _forest(letter: str, each: Compared, metrics: Mapping[str, MetricComparison]) -> Block:
    margins = {one.metric: one for one in (parse_condition(each.condition) for each in each.found.conditions)}
    rows: list[dict[str, object]] = []
    metrics = shown(each.found, dict(metrics))
    for better, heading in (("lower", "lower is better"), ("higher", "higher is better")):
        own = [
            (name, one)
            for name, one in metrics.items()
            if one.better == better and one.method is not None and one.ratio is not None
        ]
        rows += [{"heading": heading}] if own else []
        for name, one in own:
            condition = margins.get(name)
            limit = None
            if condition is not None and condition.margin:
                limit = math.exp(-condition.limit if better == "higher" else condition.limit)
            rows.append(
                {
                    "label": overlays.short_title(name),
                    "at": one.ratio,
                    "lo": one.ci[0],
                    "hi": one.ci[1],
                    "tone": _TONES[one.verdict],
                    "dots": _pair_ratios(one),
                    "limit": limit,
                    "note": one.verdict,
                }
            )
    reading = f"Green: {letter} is shown to be better; red: worse; grey: no clear difference."
    if any(row.get("dots") for row in rows):
        reading += " Pale dots are the single pairs."
    if any(row.get("limit") for row in rows):
        reading += " A dashed mark is the margin of a condition."
    if not rows:
        return page.note("No figure has a ratio with an interval.")
    return page.chart(
        f"{letter} relative to A.",
        reading,
        {
            "kind": "forest",
            "rows": rows,
            "x": {"label": f"difference of {letter} from A", "scale": "log", "format": "change"},
        },
    )


def _pair_ratios(one: MetricComparison) -> list[float | int | None]:
    if one.method != "paired":
        return []
    return page.rounded(b / a for a, b in zip(*one.values, strict=True) if a and b)


# --- distributions and single runs -----------------------------------------------------------------------------------


def _distributions(compared: Sequence[Compared]) -> Section:
    sides = [compared[0].a, *(each.b for each in compared)]
    run, summary = sides[0].runs[0]
    stages = parts(run, summary)
    measured = [stage.metrics for side in sides for one in side.runs for stage in parts(*one)]
    names = [name for name in overlays.SHOWN if any(name in each and each[name].count for each in measured)]
    labels = overlays.short_labels([side.label for side in sides])
    groups = [
        (f"{letter}: {formatting.one_line(label, 50)}", [run for run, _ in side.runs])
        for letter, label, side in zip(map(overlays.letter, range(len(sides))), labels, sides, strict=True)
    ]
    several = any(len(side.runs) > 1 for side in sides)
    return Section(
        "latency",
        "Distributions",
        overlays.distributions(
            names, [stage.name for stage in stages], groups, {name: limits(summary, name) for name in names}
        ),
        "Which share of the requests took at most that long: the curve further left is faster."
        + (" The runs of a side are taken together." if several else ""),
    )


def _runs(compared: Sequence[Compared]) -> Section:
    """The value of each run. Empty if each side is a single run."""
    if all(len(each.a.runs) == len(each.b.runs) == 1 for each in compared):
        return Section("runs", "Each run", [])
    is_paired = any(
        one.method == "paired" for each in compared for _, found in stages_of(each.found) for one in found.values()
    )
    what = "pair" if is_paired else "run"

    def charts(letter: str, each: Compared, metrics: Mapping[str, MetricComparison]) -> list[Block]:
        own = {name: one for name, one in metrics.items() if name in _headlines(metrics) and any(one.values)}
        panes = {
            name: [overlays.values_chart(name, one.unit, [("A", one.values[0]), (letter, one.values[1])], what)]
            for name, one in own.items()
        }
        return [page.tabs([[(name, overlays.short_title(name)) for name in panes]], panes)] if panes else []

    return Section(
        "runs",
        "Each pair" if is_paired else "Each run",
        _by_side_and_stage(compared, charts),
        "How much the figures vary from run to run. The intervals above come from this variation.",
    )


# --- tables ----------------------------------------------------------------------------------------------------------


def _figures(letter: str, each: Compared, metrics: Mapping[str, MetricComparison]) -> list[Block]:
    rows = [
        [
            title(name),
            amount(one.a, one.unit),
            amount(one.b, one.unit),
            _change(one) if _is_compared(one) else "–",
            _interval(one),
            page.tinted(one.verdict, _TONES[one.verdict] if one.verdict != "no clear difference" else "soft"),
            one.projection or ("" if _is_compared(one) else one.sentence),
        ]
        for name, one in metrics.items()
    ]
    columns = ["figure", "A", letter, "difference", "95 % CI", "verdict", "how much more to measure"]
    return [page.table(columns, rows, texts=(6,))] if rows else [page.note("No figure was measured on both sides.")]


def _interval(one: MetricComparison) -> str:
    if one.difference is not None and None not in one.difference_ci:
        return " to ".join(_signed(100 * (end or 0.0)) for end in one.difference_ci) + " pp"
    low, high = one.ci
    if low is None or high is None:
        return "–"
    return f"{_percent(low)} to {_percent(high)}"
