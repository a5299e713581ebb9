"""The sections behind the figures: failures, tokens, where the time went, the server, resources, the client, environment, definitions."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import yaml

from inferometer.analysis.breakdown import PARTS, Breakdown
from inferometer.analysis.checks import CHECKS
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.resources import ResourceUse
from inferometer.analysis.server_comparison import MEAN
from inferometer.analysis.server_view import ServerView, unread
from inferometer.analysis.summary import Summary
from inferometer.records import Manifest, MergedPart, Run
from inferometer.report import formatting, tables
from inferometer.report.html import page
from inferometer.report.html.page import Block, Section
from inferometer.report.html.parts import LATENCIES, TITLES, Part
from inferometer.server_metrics.families import SERVERS
from inferometer.server_metrics.vocabulary import QUANTITIES
from inferometer.units import NS, format_bytes, format_seconds

_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "tokens_per_chunk")
_OPTIONAL = ("cached_tokens", "reasoning_tokens", "tokens_per_chunk")
"""Left out if they are 0, or if every chunk has one token."""
_CLIENT_CHECKS = ("lag", "cpu", "stalls", "memory", "clock_step", "clocks", "read_delay", "stamps", "workers", "parts")
_MOST_STAGES = 12
"""Stages whose bars are shown below each other; more are folded away."""
_SIGNS = {"fail": ("✗", "bad"), "warn": ("!", "warn"), "pass": ("✓", "good")}


def failures(summary: Summary) -> Section:
    """How requests failed, with the most common message of each kind."""
    if not summary.failures:
        return Section("failures", "Failures", [])
    most = max(kind.count for kind in summary.failures)
    rows = [
        [kind.code, f"{kind.count:,}", page.bar(kind.count / most, "bad"), formatting.one_line(kind.message, 300)]
        for kind in summary.failures
    ]
    return Section(
        "failures",
        "Failures",
        [page.table(["kind", "requests", "", "most common message"], rows, texts=(2, 3))],
        "Requests in the measured window that did not succeed.",
    )


# --- where the time went, tokens -------------------------------------------------------------------------------------


def breakdown(summary: Summary, stages: list[Part]) -> Section:
    """Client, network, protocol, queue and compute, for servers that report their own times."""
    own = [(stage.name, stage.breakdown) for stage in summary.stages] or [("", summary.breakdown)]
    blocks: list[Block] = []
    for name, found in own:
        if found is not None:
            blocks += [*([page.heading(name)] if name else []), _stack(found)]
    if len(own) > _MOST_STAGES and blocks:
        blocks = [page.details(f"The {len(own)} stages", blocks)]
    if blocks:
        blocks.append(page.details("What the parts are", [page.facts(PARTS.items())]))
    return Section("breakdown", "Where the time went", blocks, "The mean end-to-end time, by what it was spent on.")


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


def tokens(summary: Summary, stages: list[Part]) -> Section:
    """How long prompts and responses were."""
    rows: list[list[str]] = []
    for name in _TOKENS:
        own = [
            (stage.name, _counts(found))
            for stage in stages
            if stage.metrics
            and (found := stage.metrics[name]).count
            and not (name in _OPTIONAL and found.max in (0, 1))
        ]
        label = name.replace("_", " ")
        if len(own) == len(stages) and all(cells == own[0][1] for _, cells in own):
            rows.append([label, *own[0][1]])
        else:
            rows += [[f"{label}, {stage}" if len(stages) > 1 else label, *cells] for stage, cells in own]
    if not rows:
        return Section("tokens", "Tokens", [])
    counted = ", ".join(f"{who} ({count:,} responses)" for who, count in summary.tokens_counted_by.items())
    blocks = [page.table(["per response", "mean", "min", "p50", "p90", "p99", "max"], rows)]
    return Section("tokens", "Tokens", [*blocks, page.note(f"Output tokens were counted by: {counted}.")])


def _counts(found: Distribution) -> list[str]:
    return [formatting.count(found.value(column)) for column in ("mean", "min", "p50", "p90", "p99", "max")]


def sessions(summary: Summary) -> Section:
    """The figures of whole sessions."""
    known = [(each.name, each.sessions) for each in summary.stages or ()] or [("", summary.sessions)]
    rows = []
    for name, found in known:
        for metric, values in found.metrics.items() if found is not None else ():
            scale, unit = (1e3, ", ms") if values.unit == "s" else (1.0, "")
            cells = [_scaled(values.value(column), scale) for column in ("mean", "p50", "p90", "p99", "max")]
            rows.append([f"{name}: {metric}{unit}" if name else f"{metric}{unit}", f"{values.count:,}", *cells])
    return Section(
        "sessions",
        "Sessions",
        [page.table(["", "sessions", "mean", "p50", "p90", "p99", "max"], rows)] if rows else [],
    )


def _scaled(value: float | None, scale: float) -> str:
    return formatting.number(None if value is None else value * scale)


def replicas(summary: Summary) -> Section:
    """The figures of each address that requests were sent to."""
    names = [name for name in LATENCIES if any(each.metrics and each.metrics[name].count for each in summary.replicas)]
    columns = [(name, column) for name in names for column in ("p50", "p99")]
    rows = [
        [
            formatting.one_line(each.name, 60),
            f"{each.counts.ok:,}",
            f"{each.counts.failed + each.counts.dropped:,}",
            formatting.number(each.throughput.requests),
            *(_percentile(each.metrics, *column) for column in columns),
        ]
        for each in summary.replicas
    ]
    titles = ["ok", "failed", "requests/s", *(f"{TITLES[name]} {column}" for name, column in columns)]
    return Section("replicas", "Replicas", [page.table(["latencies in ms", *titles], rows)] if rows else [])


def _percentile(metrics: Mapping[str, Distribution], name: str, column: str) -> str:
    found = metrics.get(name)
    if found is None or not found.count:
        return "–"
    return formatting.milliseconds(found.value(column)) + (tables.MARK if column in found.unsupported else "")


# --- the server and resources ----------------------------------------------------------------------------------------

_UNITS = {"s": (1e3, "ms"), "share": (100.0, "%"), "bytes": (2.0**-30, "GiB")}
_COLUMNS = ("mean", "p50", "p90", "p99", "max", "total")
_KINDS = {"distributions": {"p50", "p90", "p99"}, "levels": {"mean", "max"}, "totals": {"total"}}
"""The tables of a server's figures, with the columns that only their rows have."""


def server(run: Run, summary: Summary) -> Section:
    """What the server's own metrics say."""
    problems = [page.note(formatting.one_line(f"{name}: {why}", 1000)) for name, why in unread(run.manifest).items()]
    view = summary.server
    if view is None:
        return Section("server", "Server", problems)
    blocks: list[Block] = []
    if view.notes:
        blocks.append(page.items([page.item("!", "warn", page.sentence(text)) for text in view.notes]))
    own = {stage.name: stage.server for stage in summary.stages if stage.server} or {"": view}
    panes = {f"s{index}": _figures(each) for index, each in enumerate(own.values())}
    switch = [(f"s{index}", formatting.one_line(name, 40) or "all") for index, name in enumerate(own)]
    if any(_rows(each) for each in own.values()):
        blocks.append(page.tabs([switch], panes))
    blocks += _comparison(view)
    kinds = ", ".join(
        sorted({SERVERS[kind].title if kind in SERVERS else kind for kind in view.figures.servers.values()})
    )
    lead = f"By its own metrics ({kinds}), over the measured window of each stage." if kinds else "By its own metrics."
    return Section("server", "Server", [*blocks, *problems], lead)


def _figures(view: ServerView) -> list[Block]:
    """A table for each kind of quantity: times with their percentiles, levels with mean and maximum, and totals."""
    blocks: list[Block] = []
    rest = _rows(view)
    for title, wanted in _KINDS.items():
        own = [row for row in rest if wanted & row[1].keys() or title == "totals"]
        rest = [row for row in rest if row not in own]
        columns = [column for column in _COLUMNS if any(column in cells for _, cells in own)]
        rows = [[label, *(cells.get(column, "–") for column in columns)] for label, cells in own]
        blocks += [page.table([title, *columns], rows)] if rows else []
    return blocks


def _rows(view: ServerView) -> list[tuple[str, dict[str, str]]]:
    """A label and the cells of each quantity, in the order of the vocabulary."""
    found, rows = view.figures, []
    for name, quantity in QUANTITIES.items():
        scale, unit = _UNITS.get(quantity.unit, (1.0, quantity.unit))
        values: Mapping[str, float | None] = {}
        if gauge := found.gauges.get(name):
            values = {"mean": gauge.mean, "max": gauge.max}
        elif (histogram := found.histograms.get(name)) and histogram.count:
            values = {"mean": histogram.mean, **histogram.quantiles}
        elif (counter := found.counters.get(name)) and (counter.delta or name == "preemptions"):
            values = {"total": counter.delta}
        elif name in view.derived:
            values = {"mean": view.derived[name]}
        cells = {column: _cell(column, value * scale) for column, value in values.items() if value is not None}
        if histogram := found.histograms.get(name):
            cells |= {column: f"< {_scaled(edge, scale)}" for column, edge in histogram.below.items()}
        if cells:
            rows.append((_label(name, unit), cells))
    return rows


def _cell(column: str, value: float) -> str:
    return formatting.count(value) if column in ("max", "total") else formatting.number(value)


def _label(name: str, unit: str) -> str:
    """`ttft, ms`; a number of things has no unit beside its name."""
    words = name.replace("_", " ").replace(".", " ")
    is_counted = unit in ("", "requests", "tokens", "inferences", "executions")
    return words if is_counted else f"{words}, {unit}"


def _comparison(view: ServerView) -> list[Block]:
    """What client and server measured alike."""
    rows = []
    for name, both in view.comparison.items():
        scale, unit = _UNITS.get(both.unit, (1.0, both.unit))
        cells = [formatting.count(each * scale) for each in (both.client, both.server, both.difference)]
        is_percentile = name.partition(".")[2] not in ("", MEAN)  # of different requests, and of buckets: no difference
        rows.append([_label(name, unit), *cells[:2], "" if is_percentile else cells[2]])
    if not rows:
        return []
    return [
        page.heading("Client and server"),
        page.table(["", "client", "server", "difference"], rows),
        page.note(
            "For times, the difference of the means is the network's and the client's share. The server's percentiles are only as exact as its buckets."
        ),
    ]


def resources(summary: Summary) -> Section:
    """CPU, memory, GPUs and energy."""
    use = summary.resources
    if use is None:
        return Section("resources", "Resources", [])
    own = {stage.name: stage.resources for stage in summary.stages if stage.resources} or {"whole run": use}
    rows = [[formatting.one_line(name, 40), *_host(each)] for name, each in own.items() if each.host is not None]
    machine = "This machine, which the server runs on, too." if use.is_servers_machine else "The client's machine."
    blocks: list[Block] = []
    if rows:
        titles = ["CPU, %", "CPU max, %", "memory max", "received/s", "sent/s", "loopback/s", "disk written/s"]
        blocks.append(page.table(["", *titles], rows))
    blocks += _processes(use) + _gpus(use)
    if use.energy is not None:
        values = (
            ("energy", use.energy.joules, "J"),
            ("per request", use.energy.per_request, "J"),
            ("per output token", use.energy.per_output_token, "J"),
        )
        blocks.append(
            page.facts(
                (name, "" if value is None else f"{formatting.number(value)} {unit}") for name, value, unit in values
            )
        )
    if use.notes:
        blocks.append(page.items([page.item("!", "warn", page.sentence(text)) for text in use.notes]))
    if use.observing_share is not None:
        blocks.append(page.note(f"Observing took {100 * use.observing_share:.2g} % of a core."))
    return Section("resources", "Resources", blocks, machine)


def _host(use: ResourceUse) -> list[str]:
    host = use.host
    assert host is not None
    sizes = (host.memory_max, host.network_received, host.network_sent, host.loopback, host.disk_written)
    return [_share(host.cpu), _share(host.cpu_max), *("–" if size is None else format_bytes(size) for size in sizes)]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f}"


def _processes(use: ResourceUse) -> list[Block]:
    rows = [
        [
            formatting.one_line(each.name or name, 40),
            formatting.number(each.cpu),
            formatting.number(each.cpu_max),
            "–" if each.memory_max is None else format_bytes(each.memory_max),
        ]
        for name, each in use.processes.items()
    ]
    return [page.table(["server process", "cores, mean", "cores, max", "memory max"], rows)] if rows else []


def _gpus(use: ResourceUse) -> list[Block]:
    rows = [
        [
            f"{index}: {formatting.one_line(each.name, 40)}",
            _share(each.use),
            "–" if each.memory_max is None else format_bytes(each.memory_max),
            formatting.number(each.power),
            formatting.number(each.power_max),
            formatting.number(each.temperature_max),
            formatting.number(each.energy),
        ]
        for index, each in use.gpus.items()
    ]
    titles = ["GPU", "busy, %", "memory max", "power, W", "power max, W", "°C max", "energy, J"]
    return [page.table(titles, rows)] if rows else []


# --- the client, environment, definitions ----------------------------------------------------------------------------


def client(run: Run, summary: Summary) -> Section:
    """Whether the measuring instrument itself was fast enough."""
    samples = run.records.samples
    found = [check for check in summary.checks if check.name in _CLIENT_CHECKS]
    lines = [
        page.item(
            *_SIGNS[check.status],
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
