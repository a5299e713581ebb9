"""What a page has besides the sections of the terminal: bars of the time, every figure of each stage, the client, the environment, definitions."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
import yaml

from inferometer.analysis.breakdown import PARTS, Breakdown
from inferometer.analysis.checks import CHECKS
from inferometer.analysis.resources import ResourceUse
from inferometer.analysis.summary import Summary
from inferometer.records import Manifest, MergedPart, Run
from inferometer.report import breakdown as split
from inferometer.report import formatting
from inferometer.report.document import Block as AnyBlock
from inferometer.report.document import Section, Table
from inferometer.report.html import page
from inferometer.report.html.page import Block
from inferometer.report.resources import resources as resource_section
from inferometer.report.server import figures
from inferometer.report.server import server as server_section
from inferometer.report.sessions import section as session_section
from inferometer.report.sessions import sessions as by_session
from inferometer.report.verdict import SIGNS
from inferometer.units import NS, format_bytes, format_seconds

_CLIENT_CHECKS = ("lag", "cpu", "stalls", "memory", "clock_step", "clocks", "read_delay", "stamps", "workers", "parts")
_MOST_STAGES = 12
"""Stages whose bars are shown below each other; more are folded away."""


def breakdown(run: Run, summary: Summary) -> Section:
    """Client, network, protocol, queue and compute of each stage, as a bar and in numbers."""
    blocks: list[AnyBlock] = []
    for stage in summary.stages:
        if stage.breakdown is not None:
            blocks += [page.heading(stage.name), _stack(stage.breakdown), split.parts(stage.breakdown)]
    if len(summary.stages) > _MOST_STAGES and blocks:
        blocks = [page.details(f"The {len(summary.stages)} stages", blocks)]
    elif not blocks:
        bar = [_stack(summary.breakdown)] if summary.breakdown is not None else []
        blocks = [*bar, *split.section(run, summary).blocks]
    if any(found is not None for found in (summary.breakdown, *(stage.breakdown for stage in summary.stages))):
        blocks.append(page.details("What the parts are", [page.facts(PARTS.items())]))
    return Section("breakdown", split.TITLE, blocks, split.LEAD)


def _stack(found: Breakdown) -> Block:
    """The parts as a bar; those that are 0 or, by the error of the clocks, negative are left out."""
    outside = [("network", found.network, 0), ("protocol", found.protocol, 3)]
    known = [(name, value, colour) for name, value, colour in outside if value is not None]
    parts = (
        ("queue", found.queue or 0.0, 1),
        ("compute", found.compute or 0.0, 2),
        *(known or [("overhead", found.overhead, 0)]),
        ("client", found.client, 7),
    )
    return page.stack(
        [(name, value, f"{formatting.milliseconds(value)} ms", colour) for name, value, colour in parts if value > 0]
    )


def sessions(summary: Summary) -> Section:
    """All figures of the sessions; those of several stages are folded away."""
    folded = [
        page.details(stage.name, by_session(stage.sessions))
        for stage in summary.stages
        if stage.sessions is not None and summary.sessions is None
    ]
    return with_more(session_section(summary), folded)


def server(run: Run, summary: Summary) -> Section:
    """What the server's own metrics say, with every quantity of each stage."""
    found = server_section(run, summary)
    views = [(stage.name, stage.server) for stage in summary.stages] or [("", summary.server)]
    known = {name: figures(view, is_complete=True) for name, view in views if view is not None}
    panes = {f"s{index}": each for index, each in enumerate(known.values())}
    switch = [(f"s{index}", formatting.one_line(name, 40) or "all") for index, name in enumerate(known)]
    more = [page.details("All quantities", [page.tabs([switch], panes)])] if any(known.values()) else []
    lead = "By its own metrics, over the measured window." if known else ""
    return msgspec.structs.replace(with_more(found, more), lead=lead)


def resources(run: Run, summary: Summary) -> Section:
    """CPU, memory, GPUs and energy, with the machine's figures in each stage."""
    own = [(stage.name, stage.resources) for stage in summary.stages] or [("whole run", summary.resources)]
    rows = [[formatting.one_line(name, 40), *_host(use)] for name, use in own if use and use.host is not None]
    columns = ["CPU, %", "CPU max, %", "memory max", "received/s", "sent/s", "loopback/s", "disk written/s"]
    return with_more(resource_section(run, summary), [Table("the machine", columns, rows)] if rows else [])


def with_more(section: Section, blocks: Sequence[AnyBlock]) -> Section:
    """A section with what only a page has room for."""
    return msgspec.structs.replace(section, blocks=[*section.blocks, *blocks])


def _host(use: ResourceUse) -> list[str]:
    host = use.host
    assert host is not None
    sizes = (host.memory_max, host.network_received, host.network_sent, host.loopback, host.disk_written)
    return [_share(host.cpu), _share(host.cpu_max), *("–" if size is None else format_bytes(size) for size in sizes)]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f}"


# --- the client, environment, definitions ----------------------------------------------------------------------------


def client(run: Run, summary: Summary) -> Section:
    """Whether the measuring instrument itself was fast enough."""
    samples = run.records.samples
    found = [check for check in summary.checks if check.name in _CLIENT_CHECKS]
    lines = [
        page.item(
            *SIGNS[check.status],
            page.sentence(check.message or CHECKS[check.name].definition),
            check.name.replace("_", " "),
        )
        for check in found
    ]
    pairs = [("client processes", f"{len({sample.shard for sample in samples}):,}")] if samples else []
    if samples:
        stalled = math.fsum(sample.stalled for sample in samples) / NS
        pairs += [
            (
                "CPU of a process",
                f"at most {100 * max(sample.cpu for sample in samples):.0f} % of a core, {100 * math.fsum(sample.cpu for sample in samples) / len(samples):.0f} % on average",
            ),
            ("longest stall", format_seconds(max(sample.stall for sample in samples) / NS)),
            ("stalls of 10 ms or more", f"{format_seconds(stalled)} in total"),
            ("memory of a process", f"at most {format_bytes(max(sample.rss for sample in samples))}"),
        ]
    lag = next((stage.metrics["lag"] for stage in summary.stages if stage.metrics), summary.metrics.get("lag"))
    if lag is not None and lag.count and not summary.stages:
        pairs.append(
            (
                "lag",
                f"p50 {formatting.milliseconds(lag.value('p50'))} ms, p99 {formatting.milliseconds(lag.value('p99'))} ms",
            )
        )
    if nodes := formatting.describe_nodes(run.manifest):
        pairs.append(("nodes", nodes))
    pairs.append(("timestamps", str(run.manifest.clock.get("stamps") or "")))
    blocks = [page.facts(pairs), *([page.items(lines)] if lines else [])]
    return Section("client", "Client health", blocks, "Whether the load generator kept up with its own schedule.")


def environment(run: Run) -> Section:
    """Versions, machine, seeds and the config, as the manifest has them."""
    return environment_of(run.manifest)


def environment_of(manifest: Manifest) -> Section:
    """The same, for a report that is not about one run."""
    trees: Sequence[tuple[str, Mapping[str, object]]] = (
        ("versions", manifest.versions),
        ("machine", {key: value for key, value in manifest.host.items() if key != "nodes"}),
        ("clock", {key: value for key, value in manifest.clock.items() if key != "nodes"}),
        ("seeds", manifest.seeds),
        ("workload", {key: value for key, value in manifest.workload.items() if key != "notes"}),
    )
    pairs = [(name, ", ".join(_fact(key, value) for key, value in tree.items())) for name, tree in trees]
    pairs += [(f"part {part.number}", _part(part)) for part in (manifest.merged.parts if manifest.merged else ())]
    config = yaml.safe_dump(manifest.config, sort_keys=False, allow_unicode=True, width=100)
    return Section(
        "environment", "Environment", [page.facts(pairs), page.details("The config as it ran", [page.code(config)])]
    )


def _part(part: MergedPart) -> str:
    """Where a part of a merged run was measured."""
    start = datetime.fromtimestamp(part.t0_wall_ns / NS, UTC).isoformat(timespec="microseconds")
    machine = formatting.one_line(str(part.host.get("name", "an unnamed machine")), 60)
    clock = ", ".join(_fact(key, value) for key, value in part.clock.items())
    return f"{machine}, started at {start} by its own clock ({clock}), {part.requests:,} requests, folder {part.run}"


def _fact(key: str, value: object) -> str:
    """`step 21 ns`, or `has server: yes`: a key of the manifest in words, and its value."""
    name = key.removesuffix("_ns").replace("_", " ")
    if isinstance(value, bool):
        return f"{name}: {'yes' if value else 'no'}"
    is_time = key.endswith("_ns") and isinstance(value, int)
    return f"{name} {format_seconds(value / NS) if is_time else _short(key, value)}"  # type: ignore[operator]


def _short(key: str, value: object) -> str:
    if key == "memory" and isinstance(value, int):
        return format_bytes(value)
    return formatting.one_line(f"{value:.6g}" if isinstance(value, float) else str(value), 120)


def definitions(summary: Summary) -> Section:
    """What every name in the report means."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, text in summary.definitions.items():
        group = {
            "throughput": "Rates",
            "check": "Checks",
            "server": "Server",
            "breakdown": "Where the time went",
            "resources": "Resources",
        }.get(name.partition(".")[0], "Metrics")
        groups.setdefault(group, []).append((name, text))
    return Section(
        "definitions", "Definitions", [page.details(group, [page.facts(pairs)]) for group, pairs in groups.items()]
    )
