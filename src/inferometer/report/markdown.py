"""Markdown summaries, for a pull request or a CI job: of a run, and of a comparison."""

import re
from collections.abc import Iterable, Sequence

from inferometer.analysis import settings
from inferometer.analysis.checks import in_words
from inferometer.analysis.comparison import Comparison
from inferometer.analysis.comparison_text import title
from inferometer.analysis.percentiles import Distribution, label_of
from inferometer.analysis.slo_expression import parse
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.summary import StageSummary, Summary
from inferometer.records import Run
from inferometer.report import cost, formatting
from inferometer.report.compare import amount, describe_side, stages_of
from inferometer.report.tables import interval_of

_MENTION = re.compile(r"(?<!\w)([@#])(?=\w)")
"""Of a person or an issue, which GitHub would notify. A space without width ends it."""
_COLUMNS = ("mean", "p50", "p90", "p99")
_LATENCIES = ("ttft", "itl", "tpot", "e2e", "queue", "compute", "protocol", "network")
_RATES = {"requests": "requests/s", "output_tokens": "output tokens/s", "inferences": "inferences/s"}
_MARKS = {"met": "✅ met", "missed": "❌ missed", "undecided": "❔ undecided"}
_CONDITIONS = {"passes": "✅ passes", "fails": "❌ fails", "undecided": "❔ undecided"}
_VERDICTS = {"better": "🟢 better", "worse": "🔴 worse", "no clear difference": "⚪ no clear difference"}


def run_summary(run: Run, summary: Summary) -> str:
    """The verdict, what was run, objectives, throughput and latency."""
    manifest = run.manifest
    model = manifest.config.get("server")
    name = model.get("model") if isinstance(model, dict) else None
    stages = manifest.plan
    load = formatting.describe_load(stages[0]) if len(stages) == 1 else f"{len(stages)} stages"
    which = formatting.describe_part(manifest)
    lines = [
        f"## {in_words(summary.checks)}: {escape(' · '.join(str(x) for x in (formatting.describe_target(manifest), name) if x))}",
        "",
        escape(" · ".join(filter(None, (formatting.describe_api(manifest), load, which, summary.started)))),
        "",
    ]
    noticed = [check for check in summary.checks if check.status in ("fail", "warn")]
    lines += [f"- **{check.name}** ({check.status}): {escape(check.message)}" for check in noticed]
    lines += [""] if noticed else []
    if summary.slos:
        lines += table(("objective", "status", "measured", "why"), [_objective(each) for each in summary.slos])
    columns = ("mean", *settings.percentiles(manifest)) if settings.percentiles(manifest) else _COLUMNS
    for part in summary.stages or (summary,):
        lines += _figures(part, getattr(part, "name", ""), columns)
    lines += _cost(summary)
    if summary.failures:
        failures = [(kind.code, f"{kind.count:,}", _code(kind.message)) for kind in summary.failures]
        lines += table(("failure", "requests", "message"), failures)
    return "\n".join(lines).rstrip("\n") + "\n"


def _objective(result: SloResult) -> tuple[str, ...]:
    value = "" if result.value is None else parse(result.expression).amount(result.value)
    return f"`{result.slo}`", _MARKS[result.status], value, result.reason


def _figures(part: Summary | StageSummary, name: str, columns: Sequence[str]) -> list[str]:
    lines = [f"### {escape(name)}", ""] if name else []
    rates = [
        f"{formatting.number(getattr(part.throughput, rate))} {unit}"
        for rate, unit in _RATES.items()
        if getattr(part.throughput, rate) is not None
    ]
    counts = f"{part.counts.ok:,} requests ok, {part.counts.failed:,} failed"
    lines += [escape(" · ".join([*rates, counts])), ""]
    rows = [_latency(metric, part.metrics[metric], columns) for metric in _LATENCIES if metric in part.metrics]
    rows = [row for row in rows if row]
    header = ("latency (ms)", *map(label_of, columns), f"95 % CI of {label_of(interval_of(columns))}")
    return lines + (table(header, rows) if rows else [])


def _latency(name: str, found: Distribution, columns: Sequence[str]) -> tuple[str, ...]:
    if not found.count:
        return ()
    cells = [
        formatting.milliseconds(found.mean if field == "mean" else found.value(field))
        + ("\\*" if field in found.unsupported else "")
        for field in columns
    ]
    low, high = found.ci.get(interval_of(columns), (None, None))
    return name, *cells, f"{formatting.milliseconds(low)} .. {formatting.milliseconds(high)}"


def _cost(summary: Summary) -> list[str]:
    """Costs and rates per GPU, and the cheapest load for a rate per user."""
    lines: list[str] = []
    if summary.efficiency is not None and summary.stages:
        headers, rows = cost.stage_rows(summary)
        lines += table((cost.TITLE, *headers), rows) if headers else []
    elif summary.efficiency is not None:
        found = [figure for figure in cost.figures(summary.efficiency) if figure.estimate is not None]
        lines += table((cost.TITLE, "value", "95 % CI"), [(each.name, each.value, each.interval) for each in found])
    notes = cost.notes(summary)
    if summary.pareto is not None:
        notes += [line.strip() for each in summary.pareto.cheapest_at for line in cost.sentences(each, summary.pareto)]
    return lines + ([*(f"- {escape(note)}" for note in notes), ""] if notes else [])


def comparison_summary(found: Sequence[Comparison]) -> str:
    """Conditions first, then a sentence and the figures of each metric."""
    lines: list[str] = []
    for each in found:
        lines += [
            "## A against B",
            "",
            f"- A: {escape(describe_side(each.a))}",
            f"- B: {escape(describe_side(each.b))}",
            "",
        ]
        if each.conditions:
            rows = [
                (
                    f"`{one.condition}`",
                    _CONDITIONS[one.status],
                    f"{one.stage}: {one.reason}" if one.stage else one.reason,
                )
                for one in each.conditions
            ]
            lines += table(("fail if", "status", "why"), rows)
        for name, metrics in stages_of(each):
            lines += [f"### {escape(name)}", ""] if name else []
            figures = [
                (title(key), _VERDICTS[one.verdict], amount(one.a, one.unit), amount(one.b, one.unit), one.sentence)
                for key, one in metrics.items()
            ]
            lines += table(("metric", "verdict", "A", "B", "in words"), figures) if figures else []
        lines += [*(f"- {escape(note)}" for note in each.notes), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, and the empty line after it; nothing if it has no rows."""
    rows = list(rows)
    if not rows:
        return []
    lines = [header, ["---"] * len(header), *rows]
    return [*(f"| {' | '.join(escape(cell) for cell in line)} |" for line in lines), ""]


def escape(text: str) -> str:
    """A text on one line that cannot end a table cell, and that has no HTML, link, image, mention or reference except within code (`...`)."""
    line = formatting.one_line(text, 1000)
    parts = line.replace("|", "\\|").split("`")
    is_plain = "``" in line or "\\`" in line  # other rules decide what is code
    last = len(parts) - 1
    return "`".join(
        part if index % 2 and index < last and not is_plain else _inert(part) for index, part in enumerate(parts)
    )


def _inert(text: str) -> str:
    text = _MENTION.sub(r"\1&#8203;", text).replace("<", "&lt;").replace("](", "]&#40;")
    return text.replace("://", ":&#47;/").replace("www.", "www&#46;")  # GitHub makes links of these, too


def _code(text: str) -> str:
    return "`" + text.replace("`", "'") + "`" if text else ""
