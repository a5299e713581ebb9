"""A result for people: as wide as a report, without colours if the output is not a terminal."""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

import click
import msgspec
import numpy as np

from inferometer.infer import time_split, tokens
from inferometer.infer.result import ClassScore, Response, Result
from inferometer.printable import printable
from inferometer.report.formatting import milliseconds, one_line
from inferometer.report.width import WIDTH, columns
from inferometer.tensors import Tensor, shown, to_numpy
from inferometer.units import NS, format_bytes

_BESIDE_BARS = 64
"""Columns beside a bar."""
_MOST_BYTES = 2000
"""Maximum shown of one element of BYTES."""
_FIRST_VALUES = 6
"""Number of values of an embedding that are shown."""
_ROWS = 8
"""Maximum number of rows of a batch whose classes are shown."""

Style = Callable[..., str]


def render(result: Result, color: bool = False, width: int | None = None) -> str:
    """Everything but the text, which was shown as it arrived; `width` columns, by default those of standard output."""
    style: Style = click.style if color else _plain
    width = columns() if width is None else width
    lines = [*_title(result, style, width), ""]
    for part in _PARTS[result.kind]:
        section = list(part(result, style, width))
        lines += [*section, ""] if section else []
    lines += _time(result, style, width - _BESIDE_BARS)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _title(result: Result, style: Style, width: int) -> Iterable[str]:
    model = f"{result.model}, version {result.version}" if result.version else result.model
    title = one_line(" · ".join((result.url, model, result.api)), WIDTH - 1)
    yield from (" " + style(line, bold=True) for line in textwrap.wrap(title, width - 1, break_on_hyphens=False))


def _plain(text: str, **_: object) -> str:
    return text


# --- tensors ---------------------------------------------------------------------------------------------------------


def _inputs(result: Result, style: Style, width: int) -> Iterable[str]:
    if not result.inputs:
        return
    rows = [
        (given.tensor.name, f"{given.tensor.datatype} {shown(given.tensor.shape)}", given.source)
        for given in result.inputs
    ]
    names, kinds = (max(len(row[column]) for row in rows) for column in (0, 1))
    for number, (name, kind, source) in enumerate(rows):
        room = max(10, width - 10 - names - kinds)
        label = style("in   " if not number else "     ", bold=True)
        yield f" {label}{name:<{names}}  {kind:<{kinds}}  {style(one_line(source, room), dim=True)}"


def _responses(result: Result, style: Style, width: int) -> Iterable[str]:
    several = len(result.responses) != 1
    if not result.responses:
        yield _no_responses(style)
    for index, response in enumerate(result.responses):
        if several:
            yield f" {style(f'out  {index + 1}', bold=True)}  {style(f'after {milliseconds(response.at / NS)} ms', dim=True)}"
        heads = _heads(response.outputs)
        for number, tensor in enumerate(response.outputs):
            label = style("out  ", bold=True) if not several and not number else "     "
            yield from _output(response, tensor, heads[number], label, style, width)


def _heads(outputs: Sequence[Tensor]) -> list[str]:
    """Names, datatypes and shapes, padded to equal width."""
    rows = [(tensor.name, f"{tensor.datatype} {shown(tensor.shape)}") for tensor in outputs]
    names, kinds = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    return [f"{name:<{names}}  {kind:<{kinds}}" for name, kind in rows]


def _output(response: Response, tensor: Tensor, head: str, label: str, style: Style, width: int) -> Iterable[str]:
    rows = response.classes.get(tensor.name)
    if rows is not None:
        yield f" {label}{head}  {style('top classes: score, index, label', dim=True)}"
        for index, row in enumerate(rows[:_ROWS]):
            if len(rows) > 1:
                yield f"      {style(f'row {index}', dim=True)}"
            yield from _classes(row, style, width)
        if len(rows) > _ROWS:
            yield f"      and {len(rows) - _ROWS} more rows"
        return
    lines = values(tensor, width)
    if len(lines) == 1 and len(head) + len(lines[0]) < width - 10:
        yield f" {label}{head}  {lines[0]}"
        return
    yield f" {label}{head}"
    yield from (f"      {line}" for line in lines)


def _classes(row: tuple[ClassScore, ...], style: Style, width: int) -> Iterable[str]:
    scores = [f"{found.score:.6g}" for found in row]
    longest = max(map(len, scores), default=0)
    for score, found in zip(scores, row, strict=True):
        yield f"      {style(score.rjust(longest), bold=True)}  {found.index:>5}  {one_line(printable(found.label), width - 30)}".rstrip()


def values(tensor: Tensor, width: int = WIDTH) -> list[str]:
    """A tensor's elements, abbreviated by numpy; BYTES as text."""
    array = to_numpy(tensor)
    if tensor.datatype == "BYTES":
        elements = array.reshape(-1).tolist()
        lines = [line for raw in elements[:_ROWS] for line in _text_of(raw)]
        return lines + ([f"... {len(elements) - _ROWS} more"] if len(elements) > _ROWS else [])
    with np.printoptions(threshold=100, edgeitems=4, linewidth=width - 7, precision=6, suppress=False):
        return str(array).splitlines()


def _text_of(raw: bytes) -> list[str]:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return [f"{raw[:32]!r}{'...' if len(raw) > 32 else ''} ({len(raw):,} bytes)"]
    more = f" ... ({len(raw):,} bytes)" if len(text) > _MOST_BYTES else ""
    return (printable(text[:_MOST_BYTES]) + more).split("\n") if text else ["''"]


def _no_responses(style: Style) -> str:
    return f" {style('out', bold=True)}  no responses: the stream ended normally without any"


def _messages(result: Result, style: Style, _: int) -> Iterable[str]:
    if not result.messages:
        yield _no_responses(style)
    several = len(result.messages) > 1
    for index, (at, message) in enumerate(result.messages):
        if several:
            yield f" {style(f'out  {index + 1}', bold=True)}  {style(f'after {milliseconds(at / NS)} ms', dim=True)}"
        text = msgspec.json.format(msgspec.json.encode(message), indent=2).decode()
        yield from (f" {line}" for line in printable(text).splitlines())


# --- text ------------------------------------------------------------------------------------------------------------


def _tokens(result: Result, style: Style, width: int) -> Iterable[str]:
    found = tokens.measured(result)
    counts = [f"{found[name]:,} {word}" for name, word in _COUNTS.items() if found[name] is not None]
    by = _BY.get(found["counted_by"], "")
    if counts:
        counted = ", ".join(counts)
        between = "  " if 10 + len(counted) + 2 + len(by) <= width else f"\n{'':10}"
        yield f" {style('tokens', bold=True)}   {counted}{between}{style(by, dim=True)}"
    times = [("ttft", found["ttft"], "ms"), ("itl", found["itl_mean"], "ms mean"), ("", found["itl_max"], "ms max"), ("e2e", found["e2e"], "ms")]  # fmt: skip
    parts = [f"{name} {milliseconds(value)} {unit}".strip() for name, value, unit in times if value is not None]
    if found["per_second"] is not None:
        parts.append(f"{found['per_second']:,.1f} tokens/s")
    whole = " · ".join(part.replace(" ", _UNBROKEN) for part in parts).replace(
        f"{_UNBROKEN}mean ·", f"{_UNBROKEN}mean,"
    )
    for index, line in enumerate(textwrap.wrap(whole, width - 10)):
        label = style("latency", bold=True) if not index else " " * len("latency")
        yield f" {label}  {line.replace(_UNBROKEN, ' ')}"


_BY = {"server": "the server's count", "chunks": "one per chunk: the server does not count"}
_UNBROKEN = "\N{NO-BREAK SPACE}"
_COUNTS = {"input": "in", "output": "out", "cached": "cached", "reasoning": "reasoning"}


# --- embeddings ------------------------------------------------------------------------------------------------------


def _vectors(result: Result, style: Style, width: int) -> Iterable[str]:
    for number, vector in enumerate(result.vectors):
        norm = math.sqrt(math.fsum(value * value for value in vector))
        start = ", ".join(f"{value:.4g}" for value in vector[:_FIRST_VALUES])
        more = ", ..." if len(vector) > _FIRST_VALUES else ""
        label = style("out", bold=True) if not number else "   "
        yield f" {label}      {len(vector):,} dimensions, norm {norm:.4g}"
        yield f"          {style(f'[{start}{more}]', dim=True)}"
    if result.usage is not None:
        yield f" {style('tokens', bold=True)}   {result.usage.n_in:,} in  {style(_BY['server'], dim=True)}"


# --- time ------------------------------------------------------------------------------------------------------------


def _time(result: Result, style: Style, room: int) -> Iterable[str]:
    instants, server = result.instants, result.server
    parts = time_split.parts(instants)
    total = sum(part.length for part in parts)
    notes = {
        "connect": "TCP and TLS" if instants.tls else "TCP",
        "send": format_bytes(instants.bytes_out),
        "wait": "until the first byte of the response",
        "receive": format_bytes(instants.bytes_in),
    }
    stamps = "timestamps by the kernel" if instants.by_kernel else "timestamps when read, not by the kernel"
    yield f" {style('time, ms', bold=True)}"
    for part in parts:
        yield _row(part.name, part.length, bar(part.start, part.length, total, room), notes[part.name], style)
    yield _row("total", total, " " * room, stamps, style)
    if instants.rtt >= 0:
        yield _row("RTT", instants.rtt, " " * room, "shortest round trip, by the kernel", style)
    if server is None:
        return
    if isinstance(server, str):
        yield f" {style('of that in the server', bold=True)}, {style(f'unknown: {server}', dim=True)}"
        return
    average = f", the average of {server.requests:,} requests" if server.requests != 1 else ""
    known = [(name, value) for name, value in (("queue", server.queue), ("compute", server.compute)) if value >= 0]
    yield f" {style('of that in the server', bold=True)}, {style(f'by {server.source}{average}', dim=True)}"
    for name, value in known:
        yield _row(name, value, bar(0, value, total, room), "", style)
    outside = time_split.outside_model(instants, server)
    if outside.protocol is not None and outside.network is not None:
        yield _row("protocol", outside.protocol, bar(0, outside.protocol, total, room), "the server besides", style)
        yield _row("network", outside.network, bar(0, outside.network, total, room), "outside of the server", style)
        return
    note = "network, and what the server does not count" if outside.rest is not None else _BEYOND
    yield _row("rest", outside.rest, "", note, style)


_BEYOND = "none: the server counts work after its response"


def _row(name: str, ns: int | None, drawn: str, note: str, style: Style) -> str:
    bar_of = f"{style(drawn, fg='cyan')}  " if drawn else ""
    return f"   {name:<8} {milliseconds(None if ns is None else ns / NS):>9}  {bar_of}{style(note, dim=True)}"


def bar(start: int, length: int, total: int, room: int = WIDTH - _BESIDE_BARS) -> str:
    """A bar for one part of the total, which is `room` columns wide; a part that took any time has at least one."""
    if total <= 0 or length <= 0:
        return " " * room
    first = min(room - 1, start * room // total)
    last = max(first + 1, min(room, round((start + length) * room / total)))
    return (" " * first + "█" * (last - first)).ljust(room)


_PARTS: dict[str, tuple[Callable[[Result, Style, int], Iterable[str]], ...]] = {
    "text": (_tokens,),
    "embeddings": (_vectors,),
    "tensors": (_inputs, _responses),
    "method": (_messages,),
}
