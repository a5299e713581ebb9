"""Numbers, loads and servers as text, the way all reports print them."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from inferometer.analysis import settings
from inferometer.printable import printable
from inferometer.records import Manifest, StagePlan
from inferometer.units import format_seconds

_FORMULA = re.compile(r"[=+@\t\r]|-(?![\d.]+$)")
"""How a formula begins in a spreadsheet; negative numbers do not."""


def number(value: float | None, decimals: int | None = None) -> str:
    """Format a number with the decimals that suit its size, or with at most `decimals`."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if decimals is None:
        decimals = decimals_for(value)
    most = next(places for below, places in ((99.9995, 3), (999.995, 2), (math.inf, 0)) if abs(value) < below)
    return f"{value:,.{min(decimals, most)}f}"


def milliseconds(seconds: float | None, decimals: int | None = None) -> str:
    """Format a latency in milliseconds; from 1000 s on in seconds, with their unit."""
    if seconds is not None and 1000 <= abs(seconds) < math.inf:
        return f"{seconds:,.0f}s"
    return number(None if seconds is None else seconds * 1e3, decimals)


def decimals_for(value: float | None) -> int:
    """Return how many decimals make about four digits."""
    size = abs(value or 0)
    return next((places for below, places in ((9.9995, 3), (99.995, 2), (999.95, 1)) if size < below), 0)


def count(value: float | None) -> str:
    """Format a number of tokens: without decimals if it is whole."""
    if value is None or not math.isfinite(value) or value != round(value):
        return number(value)
    return f"{value:,.0f}"


def rate(value: float, digits: int = 6) -> str:
    """Format a rate with at most `digits` significant digits, but never with an exponent: `2,000,000`, not 2e+06."""
    return f"{value:,.{digits}g}" if value < 10**digits - 0.5 else f"{value:,.0f}"


def one_line(text: str, width: int) -> str:
    """Put a text from a server on one line, without control characters, cut to `width`."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file, which may be printed: a text that a spreadsheet would take for a formula starts with an apostrophe."""
    text = printable(value) if isinstance(value, str) else ""
    return f"'{text}" if _FORMULA.match(text) else text or value


def csv_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A CSV file, whose header is the keys of the first row."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue().encode()


def name_ranges(names: Sequence[str], chosen: Sequence[int]) -> str:
    """List the names at these indices; five or more in a row are a range: `4/s, 12/s to 60/s`."""
    groups: list[list[int]] = []
    for index in chosen:
        if groups and groups[-1][-1] == index - 1:
            groups[-1].append(index)
        else:
            groups.append([index])
    parts = [
        [f"{names[group[0]]} to {names[group[-1]]}"] if len(group) >= 5 else [names[index] for index in group]
        for group in groups
    ]
    return ", ".join(text for part in parts for text in part)


def describe_part(manifest: Manifest) -> str:
    """Which part of a run this is, or how many parts it was merged from; "" for a run that was measured as a whole."""
    if manifest.part is not None:
        return f"part {manifest.part.number} of {manifest.part.of}, counted from 0"
    if manifest.merged is not None:
        return f"{len(manifest.merged.parts)} of {manifest.merged.of} parts"
    return ""


def describe_load(stage: StagePlan) -> str:
    """Describe a stage: `poisson, 500 requests/s, for 10 s` or `closed loop, 256 in flight, 2,560 requests`."""
    if stage.open:
        digits = 6 if stage.type in ("constant", "poisson", "gamma") else 4  # the others' is an average
        parts = [f"{stage.type}, {rate(stage.rate, digits)} {stage.unit}/s"] if stage.rate else [stage.type]
    else:
        users = "sessions at a time" if stage.unit == "sessions" else "in flight"
        parts = [f"closed loop, {stage.concurrency:,} {users}"]
    parts.append(_describe_end(stage))
    if stage.open and stage.concurrency:
        parts.append(f"at most {stage.concurrency:,} in flight")
    parts += [f"ramp-up {format_seconds(stage.ramp_up)}"] if stage.ramp_up else []
    parts += [f"think time {format_seconds(stage.think)}"] if stage.think else []
    return ", ".join(part for part in parts if part)


def describe_stages(manifest: Manifest) -> str:
    """The load of a run: that of its stage, or how many stages it has."""
    stages = manifest.plan
    return describe_load(stages[0]) if len(stages) == 1 else f"{len(stages)} stages"


def _describe_end(stage: StagePlan) -> str:
    """`for 10 s`, `600 requests`, `600 requests in 10 s` (open loop), `600 requests or 10 s` (whichever comes first)."""
    if not stage.requests:
        return f"for {format_seconds(stage.duration)}" if stage.duration else ""
    duration = f" {'in' if stage.open else 'or'} {format_seconds(stage.duration)}" if stage.duration else ""
    return f"{stage.requests:,} {stage.unit}{duration}"


def describe_nodes(manifest: Manifest) -> str:
    """Describe the machines of a fleet: `8 shards on 4 nodes, their clocks known to within 0.4 ms`; empty if there is only this one."""
    bounds = settings.node_clock_bounds(manifest)
    if not bounds:
        return ""
    shards, nodes = manifest.host.get("processes"), "1 node" if len(bounds) == 1 else f"{len(bounds)} nodes"
    return f"{shards} shards on {nodes}, {'its clock' if len(bounds) == 1 else 'their clocks'} known to within {format_seconds(max(bounds))}"


def describe_target(manifest: Manifest) -> str:
    """Name the server: its URL, or the first of several."""
    url = settings.text(manifest, "server", "url")
    urls = [str(each) for each in url] if isinstance(url, list | tuple) else [str(url or "?")]
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    return f"{urls[0]}{more}"


def describe_api(manifest: Manifest) -> str:
    """Name the API and whether responses are streamed: `chat, streamed`."""
    api = settings.api(manifest)
    if api.has_method:
        return str(settings.text(manifest, "server", "method"))
    return f"{api.name}, {'streamed' if settings.text(manifest, 'server', 'stream') is not False else 'not streamed'}"


def data_notes(manifest: Manifest) -> list[str]:
    """What a user should know about the data, such as broken rows that were skipped."""
    notes = manifest.workload.get("notes")
    return [str(note) for note in notes] if isinstance(notes, list | tuple) else []
