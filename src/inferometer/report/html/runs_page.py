"""The HTML page of several runs: a table of them, their distributions over each other, latency against throughput, and their variation."""

from collections.abc import Mapping, Sequence
from typing import Any

from inferometer.analysis.checks import in_words
from inferometer.analysis.comparable import are_repeats
from inferometer.analysis.comparison_text import title
from inferometer.analysis.repeats import Repeats, Variation, summarise_repeats
from inferometer.analysis.summary import Measured
from inferometer.report import formatting, tables
from inferometer.report.compare import amount
from inferometer.report.document import MARK, Section
from inferometer.report.document import Block as AnyBlock
from inferometer.report.html import background, curve, overlays, page
from inferometer.report.html.overview import started
from inferometer.report.html.page import Block, Page, render
from inferometer.report.html.parts import TITLES, Part, is_token_run, latencies, limits, parts
from inferometer.report.repeats import variation_table
from inferometer.report.slo import SIGNS
from inferometer.report.verdict import TONES

_HEADLINES = ("throughput.requests", "throughput.output_tokens", "throughput.inferences", "ttft.p50", "ttft.p99", "itl.p50", "itl.p99", "e2e.p50", "e2e.p99")  # fmt: skip
_MOST_LINES = 24
"""CDFs in a chart; more could not be told apart."""
_PERCENTILES = ("p50", "p90", "p99")
_COLOURS = 8
"""As many as charts.js has."""


class _Runs:
    """The runs with what several sections need of them."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.measured = measured
        self.stages = [parts(*one) for one in measured]
        self.pairs = list(zip(measured, self.stages, strict=True))
        self.names = overlays.short_labels([str(run.folder) for run, _ in measured])
        self.latencies = [name for name in TITLES if any(name in latencies(stages) for stages in self.stages)]
        self.has_tokens = any(is_token_run(run, stages) for (run, _), stages in zip(measured, self.stages, strict=True))
        self.has_equal_stages = len({len(stages) for stages in self.stages}) == 1
        self.colours = _colours(measured)
        self.repeats: Repeats | None = (
            summarise_repeats(measured) if len(measured) > 1 and are_repeats(measured) else None
        )


def _colours(measured: Sequence[Measured]) -> list[int]:
    """A colour each; if there are too few, the same for runs that are repeats of each other, unless all are, or none."""
    groups: list[list[Measured]] = []
    numbers = []
    for one in measured:
        number = next((number for number, group in enumerate(groups) if are_repeats([group[0], one])), len(groups))
        if number == len(groups):
            groups.append([])
        groups[number].append(one)
        numbers.append(number)
    return [
        number % _COLOURS
        for number in (numbers if len(groups) > 1 and len(measured) > _COLOURS else range(len(measured)))
    ]


def encode(measured: Sequence[Measured]) -> bytes:
    """One page for all runs."""
    return render(runs_page(measured))


def runs_page(measured: Sequence[Measured]) -> Page:
    """The report, before it is rendered."""
    runs = _Runs(measured)
    manifest, summary = measured[0][0].manifest, measured[0][1]
    targets = dict.fromkeys(formatting.describe_target(run.manifest) for run, _ in measured)
    loads = dict.fromkeys(formatting.describe_load(stage) for run, _ in measured for stage in run.manifest.plan)
    what = "repeats" if runs.repeats else "runs"
    return Page(
        title=formatting.one_line(f"{len(measured)} {what} of {', '.join(targets)}", 160),
        subtitle=" · ".join(
            filter(
                None,
                (
                    formatting.describe_api(manifest),
                    next(iter(loads)) if len(loads) == 1 else f"{len(loads)} loads",
                    started(summary),
                ),
            )
        ),
        sections=_sections(runs),
        footer=f"Made by inferometer {summary.inferometer} from {len(measured)} runs. This file works without a network.",
        version=summary.inferometer,
    )


def _sections(runs: _Runs) -> list[Section]:
    return [
        _overview(runs),
        _variation(runs),
        _distributions(runs),
        _curve(runs),
        _objectives(runs),
        _what(runs),
        background.definitions(runs.measured[0][1]),
    ]


# --- the runs --------------------------------------------------------------------------------------------------------


def _overview(runs: _Runs) -> Section:
    words = [in_words(summary.checks) for _, summary in runs.measured]
    worst = next(word for word in ("INVALID", "VALID with warnings", "VALID") if word in words)
    blocks: list[Block] = [
        {"kind": "verdict", "tone": TONES[worst], "words": _badge(words), "text": _answer(runs)},
    ]
    if runs.repeats and runs.repeats.metrics:
        cards = [_card(name, runs.repeats.metrics[name]) for name in _HEADLINES if name in runs.repeats.metrics]
        blocks.append(page.cards(cards))
    blocks += _table(runs, words)
    failed = [
        page.item("✗", "bad", formatting.one_line(check.message, 1000), name)
        for name, (_, summary) in zip(runs.names, runs.measured, strict=True)
        for check in summary.checks
        if check.status == "fail"
    ]
    if failed:
        blocks.append(page.details("Why runs are not valid", [page.items(failed)]))
    return Section("runs", "Verdict", blocks)


def _badge(words: Sequence[str]) -> str:
    invalid = sum(word == "INVALID" for word in words)
    if invalid:
        return f"{invalid} OF {len(words)} INVALID"
    return "ALL VALID" if "VALID with warnings" not in words else "ALL VALID, with warnings"


def _answer(runs: _Runs) -> str:
    """What the runs show together, in a sentence."""
    if runs.repeats is None:
        return f"{len(runs.measured)} runs that differ in more than their seed. Use inferometer compare to judge differences."
    metrics = runs.repeats.metrics
    known = [name for name in ("ttft.p99", "ttft.p90", "ttft.p50", "e2e.p99", "e2e.p50") if name in metrics]
    name = next((name for name in known if metrics[name].within is not None), known[0] if known else None)
    if name is None:
        return f"{len(runs.measured)} repeats of one config, with fresh seeds."
    found = metrics[name]
    within = f"; within a run, its standard error is {_share(found.within)}" if found.within is not None else ""
    return f"Repeats with fresh seeds: {title(name)} varies by {_share(found.between)} between runs{within}."


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2g} %"


def _card(name: str, found: Variation) -> dict[str, str]:
    value, _, unit = amount(found.mean, found.unit).partition(" ")
    low, high = found.ci
    interval = "" if low is None else f"95 % CI {_bare(low, found.unit)} – {_bare(high, found.unit)}"
    return page.card(overlays.short_title(name), value.removesuffix("/s"), unit, interval)


def _bare(value: float | None, unit: str) -> str:
    return amount(value, unit).removesuffix(" ms").removesuffix("/s")


def _table(runs: _Runs, words: Sequence[str]) -> list[Block]:
    """One row per run, or per stage of a run, with what differs between the runs before the figures."""
    columns = [(name, column) for name in runs.latencies if name in ("ttft", "itl", "e2e") for column in ("p50", "p99")]
    abouts = {
        "server": [[formatting.describe_target(run.manifest) for _ in stages] for (run, _), stages in runs.pairs],
        "load": [[formatting.describe_load(stage.plan) for stage in stages] for _, stages in runs.pairs],
        "seed": [[str(run.manifest.seeds.get("seed", 0)) for _ in stages] for (run, _), stages in runs.pairs],
    }
    shown = [name for name, each in abouts.items() if len({text for texts in each for text in texts}) > 1]
    rows: list[list[object]] = []
    for number, (_, stages) in enumerate(runs.pairs):
        for index, stage in enumerate(stages):
            tokens = [formatting.number(stage.throughput.output_tokens)] if runs.has_tokens else []
            rows.append(
                [
                    formatting.one_line(runs.names[number], 60),
                    page.tinted("INVALID" if words[number] == "INVALID" else "VALID", TONES[words[number]]),
                    *(abouts[name][number][index] for name in shown),
                    f"{stage.ok:,}",
                    page.tinted(f"{stage.failed:,}", "bad") if stage.failed else "0",
                    formatting.number(stage.throughput.requests),
                    *tokens,
                    *(_cell(stage, metric, column) for metric, column in columns),
                ]
            )
    titles = ["completed/s", *(["tokens/s"] if runs.has_tokens else [])]
    figures = [f"{TITLES[name]} {column}" for name, column in columns]
    texts = [2 + shown.index("load")] if "load" in shown else []
    blocks = [page.table(["latencies in ms", "verdict", *shown, "ok", "failed", *titles, *figures], rows, texts=texts)]
    if any(isinstance(cell, str) and cell.endswith(MARK) for row in rows for cell in row):
        blocks.append(page.note(f"{MARK} too few independent values to support this percentile."))
    return blocks


def _cell(stage: Part, name: str, column: str) -> str:
    found = stage.metrics.get(name) if stage.metrics else None
    if stage.is_overloaded or found is None or not found.count:
        return "–"
    return tables.marked(found, column)


# --- variation -------------------------------------------------------------------------------------------------------


def _variation(runs: _Runs) -> Section:
    """Between-run variation beside within-run variation. Empty if the runs are not repeats."""
    if runs.repeats is None:
        return Section("variation", "Variation", [])
    each = [(stage.name, stage.metrics) for stage in runs.repeats.stages] or [("", runs.repeats.metrics)]
    panes: dict[str, Sequence[AnyBlock]] = {str(index): _varied(metrics) for index, (_, metrics) in enumerate(each)}
    switch = [(str(index), name) for index, (name, _) in enumerate(each)]
    return Section(
        "variation",
        "Variation",
        [page.tabs([switch], panes)],
        "How much each figure varies between runs (standard deviation), beside the standard error that a single run states, both as a share "
        "of the mean. If runs vary by much more than they state, something changes from run to run that one run cannot see.",
    )


def _varied(metrics: Mapping[str, Variation]) -> list[AnyBlock]:
    panes: dict[str, Sequence[Block]] = {
        name: [
            overlays.values_chart(name, metrics[name].unit, [("run", metrics[name].values)], "run", metrics[name].mean)
        ]
        for name in _HEADLINES
        if name in metrics
    }
    charts = [page.tabs([[(name, overlays.short_title(name)) for name in panes]], panes)] if panes else []
    return [*charts, variation_table("figure", metrics, is_complete=True)]


# --- charts ----------------------------------------------------------------------------------------------------------


def _distributions(runs: _Runs) -> Section:
    names = [name for name in overlays.SHOWN if name in runs.latencies]
    stages = [stage.name for stage in runs.stages[0]] if runs.has_equal_stages else [runs.stages[0][0].name]
    groups = [(formatting.one_line(name, 60), [run]) for name, (run, _) in zip(runs.names, runs.measured, strict=True)]
    summary = runs.measured[0][1]
    blocks = overlays.distributions(
        names, stages, groups[:_MOST_LINES], {name: limits(summary, name) for name in names}, runs.colours
    )
    if len(groups) > _MOST_LINES:
        blocks.append(page.note(f"The first {_MOST_LINES} of {len(groups)} runs are drawn."))
    if not runs.has_equal_stages:
        blocks.append(page.note("The runs have different stages: the first stage of each is drawn."))
    return Section(
        "latency",
        "Distributions",
        blocks,
        "Which share of the requests took at most that long: the curve further left is faster.",
    )


def _curve(runs: _Runs) -> Section:
    """Latency against throughput, a point per run and stage."""
    rates = {"requests": "completed requests/s"} | ({"output_tokens": "output tokens/s"} if runs.has_tokens else {})
    names = [name for name in runs.latencies if name in ("ttft", "itl", "tpot", "e2e")]
    panes: dict[str, Sequence[Block]] = {
        f"{name}|{column}|{rate}": [_points(runs, name, column, rate, label)]
        for name in names
        for column in _PERCENTILES
        for rate, label in rates.items()
    }
    switches = [[(name, TITLES[name]) for name in names], [(each, each) for each in _PERCENTILES], list(rates.items())]
    return Section(
        "curve",
        "Load curve",
        [page.tabs(switches, panes)] if panes else [],
        "Where each run stands: lower is faster, further right is more work done.",
    )


def _points(runs: _Runs, name: str, column: str, rate: str, label: str) -> Block:
    series = []
    for run_name, stages, colour in zip(runs.names, runs.stages, runs.colours, strict=True):
        ordered = sorted(stages, key=lambda stage: getattr(stage.throughput, rate) or 0.0)
        loads = [stage._replace(name=formatting.describe_load(stage.plan)) for stage in ordered]
        line = curve.line(loads, name, column, rate)
        labels = [f"{run_name}: {load}" for load in line["labels"]]
        series.append({"name": formatting.one_line(run_name, 60), "colour": colour, **line, "labels": labels})
    return page.chart(
        f"{TITLES[name]} {column} against {label}.",
        "Bars are 95 % confidence intervals. Hollow: too few values, or the stage is overloaded.",
        {
            "kind": "xy",
            "height": 320,
            "x": {"label": label, "min": _left_end(series), "pad": True},
            "y": {"label": "ms (logarithmic)", "scale": "log"},
            "series": series,
            "hlines": limits(runs.measured[0][1], name),
        },
    )


def _left_end(series: Sequence[Mapping[str, Any]]) -> float:
    """Where the x axis begins: at 0, unless all points are close to each other."""
    known = [
        end for each in series for end in (*each["x"], *(end for pair in each["ex"] for end in pair)) if end is not None
    ]
    return 0.97 * min(known) if known and min(known) > max(known) / 4 else 0.0


# --- objectives and what was run -------------------------------------------------------------------------------------


def _objectives(runs: _Runs) -> Section:
    """One row per objective, one column per run."""
    names = dict.fromkeys(result.slo for _, summary in runs.measured for result in summary.slos)
    rows = []
    for name in names:
        cells: list[object] = [name]
        for _, summary in runs.measured:
            status = next((result.status for result in summary.slos if result.slo == name), None)
            cells.append("–" if status is None else page.tinted(f"{SIGNS[status][0]} {status}", SIGNS[status][1]))
        rows.append(cells)
    return Section("objectives", "Objectives", [page.table(["objective", *runs.names], rows)] if rows else [])


def _what(runs: _Runs) -> Section:
    manifests = [run.manifest for run, _ in runs.measured]
    folders = page.facts((name, str(run.folder)) for name, (run, _) in zip(runs.names, runs.measured, strict=True))
    return Section(
        "compared",
        "What was run",
        [*overlays.differences(manifests, runs.names), page.details("Folders of the runs", [folders])],
    )
