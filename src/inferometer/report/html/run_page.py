"""The HTML report of a run: its sections, in the order in which they are read."""

import numpy as np

from inferometer.analysis import settings
from inferometer.analysis.summary import Summary
from inferometer.analysis.window import STEADY
from inferometer.records import Run
from inferometer.report import formatting, groups, run_sections
from inferometer.report.document import Section
from inferometer.report.html import background, cost, curve, heatmap, latency, overview, slowest, timeline
from inferometer.report.html.gap_histogram import count_gaps
from inferometer.report.html.page import Page, render
from inferometer.report.html.parts import parts


def encode(run: Run, summary: Summary) -> bytes:
    """The report as one HTML file."""
    return render(page(run, summary))


def page(run: Run, summary: Summary) -> Page:
    """The report, before it is rendered."""
    manifest = run.manifest
    load = (formatting.describe_stages(manifest), formatting.describe_part(manifest))
    about = (formatting.describe_api(manifest), *load, overview.started(summary))
    return Page(
        title=title(run),
        subtitle=" · ".join(filter(None, about)),
        sections=sections(run, summary),
        footer=f"Made by inferometer {summary.inferometer} from {run.folder.name}. This file works without a network.",
        version=summary.inferometer,
    )


def sections(run: Run, summary: Summary) -> list[Section]:
    """The sections of a run. Those that do not apply to it have no blocks."""
    stages = parts(run, summary)
    rows = run.records.rows
    times = timeline.time_bins(run, len(rows), timeline.REQUESTS_PER_BIN)
    fine = timeline.time_bins(run, run.chunk_total, timeline.CHUNKS_PER_BIN)
    width = max(len(run.records.classes), 1)
    group = rows["stage"].astype(np.int64) * width + np.maximum(rows["class"], 0)
    gaps = count_gaps(run, fine, np.where(run.records.phase == STEADY, group, -1), len(run.manifest.plan) * width)
    return [
        overview.verdict(run, summary, stages),
        overview.what_was_run(run, summary, stages),
        latency.latency(run, summary, stages, gaps),
        timeline.timeline(run, summary, stages, times, gaps),
        heatmap.heatmap(run, summary, stages, times, gaps),
        curve.load_curve(run, summary, stages),
        curve.goodput(stages),
        cost.efficiency(summary),
        slowest.slowest(run, summary, stages),
        background.breakdown(run, summary),
        run_sections.failures(summary),
        background.sessions(summary),
        run_sections.tokens(run, summary) if summary.metrics else run_sections.tokens_by_stage(run, summary),
        *([groups.classes(run, summary)] if summary.classes else []),
        *([groups.replicas(run, summary)] if summary.replicas else []),
        background.server(run, summary),
        background.resources(run, summary),
        background.client(run, summary),
        background.environment(run),
        background.definitions(summary),
    ]


def title(run: Run) -> str:
    """The model and its server."""
    model = settings.text(run.manifest, "server", "model")
    target = formatting.describe_target(run.manifest)
    return formatting.one_line(f"{model} at {target}" if model else target, 160)
