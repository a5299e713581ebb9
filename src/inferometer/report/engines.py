"""A comparison of engines in the terminal: the recommendation, one row per engine and level, and what to know about the comparison."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.analysis.efficiency import Estimate
from inferometer.analysis.encoder_results import EncoderFigures
from inferometer.analysis.engine_choice import Recommendation
from inferometer.analysis.engine_levels import EngineLevel, Latency
from inferometer.analysis.engine_results import EngineResult, EngineResults
from inferometer.campaign import StartUp
from inferometer.report import cost, formatting, tables
from inferometer.report.console import new_console
from inferometer.report.width import bare, fitted
from inferometer.units import format_bytes, format_seconds

_NAME = 28
"""Characters of an engine's name in a table."""
_SIGNS = {"met": "✓", "missed": "✗", "undecided": "?", "": ""}
LEVELS = {"concurrency": "{} in flight", "batch": "batch {}", "rate": "{}/s"}
"""A level in a row of a table."""
_MOST_NOTES = 8


class Column(NamedTuple):
    """A column of the tables of levels."""

    title: str
    read: Callable[[EngineLevel, EngineResults], str]
    keep: int = 0
    """How late a narrow table leaves it out; 0: never."""


def level_text(level: EngineLevel) -> str:
    """`8 in flight`."""
    return LEVELS[level.by].format(formatting.rate(level.level))


def _estimate(found: Estimate | None) -> str:
    return formatting.number(None if found is None else found.value)


def _relative(found: Estimate | None) -> str:
    """Half of the interval's width: `± 2 %`."""
    if found is None or found.ci[0] is None or found.ci[1] is None or not found.value:
        return "-"
    share = 100 * (found.ci[1] - found.ci[0]) / (2 * found.value)
    return f"±{share:.0f} %" if share >= 9.5 else f"±{share:.1f} %"


def _latency(metric: str, statistic: str) -> Callable[[EngineLevel, EngineResults], str]:
    def read(level: EngineLevel, _: EngineResults) -> str:
        found: Latency | None = getattr(level, metric)
        if found is None:
            return "-"
        mark = tables.MARK if statistic in found.unsupported else ""
        return formatting.milliseconds(getattr(found, statistic)) + mark

    return read


def share(value: float | None) -> str:
    """A share as a percentage."""
    return "-" if value is None else f"{100 * value:.3g} %" if value < 0.0995 else f"{100 * value:.0f} %"


def size(count: float | None) -> str:
    return "-" if count is None else format_bytes(count)


def _used(level: EngineLevel, name: str) -> float | None:
    return None if level.resources is None else getattr(level.resources, name)


def _mark(level: EngineLevel) -> str:
    words = {
        "overloaded": level.overloaded,
        "not measured": not level.repeats,
        "not valid": level.repeats > 0 and not level.valid and not level.overloaded,
    }
    return ", ".join(word for word, holds in words.items() if holds)


PERFORMANCE = (
    Column("req/s", lambda level, _: _estimate(level.throughput.requests), 6),
    Column("tokens/s", lambda level, _: _estimate(level.throughput.output_tokens)),
    Column("95 % CI", lambda level, _: _relative(level.throughput.output_tokens or level.throughput.requests), 4),
    Column("scaling", lambda level, _: "-" if level.scaling is None else f"{level.scaling.value:.2f}", 5),
    Column("ttft p50", _latency("ttft", "p50"), 3),
    Column("ttft p95", _latency("ttft", "p95"), 8),
    Column("ttft p99", _latency("ttft", "p99"), 1),
    Column("tpot p50", _latency("tpot", "p50"), 7),
    Column("tpot p95", _latency("tpot", "p95"), 2),
    Column("e2e p50", _latency("e2e", "p50"), 9),
    Column("e2e p95", _latency("e2e", "p95"), 2),
    Column("SLO", lambda level, _: _SIGNS[level.outcome]),
    Column("", lambda level, _: _mark(level)),
)
RESOURCES = (
    Column("CPU", lambda level, _: formatting.number(_used(level, "cpu"), 2), 5),
    Column("memory", lambda level, _: size(_used(level, "memory")), 6),
    Column("GPU mem", lambda level, _: size(_used(level, "gpu_memory")), 7),
    Column("GPU", lambda level, _: share(_used(level, "gpu_use")), 4),
    Column("W", lambda level, _: formatting.number(_used(level, "power"), 0), 3),
    Column("J/token", lambda level, _: formatting.number(level.energy_per_token), 8),
    Column("cost/M", lambda level, _: "-" if level.cost_per_million is None else cost.money(level.cost_per_million.value), 9),
    Column("MFU", lambda level, _: share(level.mfu), 2),
    Column("MBU", lambda level, _: share(level.mbu), 2),
    Column("tok/s/GPU", lambda level, _: _estimate(level.output_tokens_per_gpu), 1),
    Column("tok/s/user", lambda level, _: _estimate(level.output_tokens_per_user), 1),
    Column("padding", lambda level, _: share(level.padding), 2),
)  # fmt: skip
"""The columns of the two tables of levels; those without a value at any level are left out."""
LevelRow = tuple[EngineResult, EngineLevel, list[str]]


def level_rows(found: EngineResults, columns: Sequence[Column]) -> tuple[list[Column], list[LevelRow]]:
    """The columns that any level has, and the cells of each engine and level."""
    every = [(engine, level) for engine in found.engines for level in engine.levels if not engine.encoder]
    kept = [column for column in columns if any(column.read(level, found) not in ("-", "") for _, level in every)]
    rows = [(engine, level, [column.read(level, found) for column in kept]) for engine, level in every] if kept else []
    return kept, rows


ENCODER_COLUMNS: tuple[tuple[str, Callable[[EncoderFigures], str]], ...] = (
    ("mean", lambda line: formatting.milliseconds(line.mean)),
    ("sd", lambda line: formatting.milliseconds(line.sd)),
    ("min", lambda line: formatting.milliseconds(line.min)),
    ("max", lambda line: formatting.milliseconds(line.max)),
    ("median", lambda line: formatting.milliseconds(line.median)),
    ("p95", lambda line: formatting.milliseconds(line.p95) + (tables.MARK if "p95" in line.unsupported else "")),
    ("p99", lambda line: formatting.milliseconds(line.p99) + (tables.MARK if "p99" in line.unsupported else "")),
    ("seq/s", lambda line: _estimate(line.throughput)),
    ("diff", lambda line: "-" if line.difference is None else f"{line.difference:.1e}"),
    ("memory", lambda line: size(line.memory)),
    ("J/seq", lambda line: formatting.number(line.energy_per_sequence)),
    ("", lambda line: "" if line.valid else "not valid"),
)
_ENCODER_OPTIONAL = ("J/seq", "memory", "diff", "seq/s", "min", "max", "sd", "median")


def encoder_rows(found: EngineResults) -> tuple[list[str], list[tuple[EngineResult, EncoderFigures, list[str]]]]:
    """Headers, and the cells of each engine, batch size and length."""
    every = [(engine, line) for engine in found.engines for line in engine.encoder]
    kept = [(name, read) for name, read in ENCODER_COLUMNS if any(read(line) not in ("-", "") for _, line in every)]
    return [name for name, _ in kept], [(engine, line, [read(line) for _, read in kept]) for engine, line in every]


# --- the terminal ----------------------------------------------------------------------------------------------------


def render(found: EngineResults, color: bool, width: int) -> str:
    """Render the answer for `width` columns."""
    console = new_console(color, width)
    parts: list[RenderableType] = [_title(found), *(_recommended(each, found) for each in found.recommendation)]
    excluded = [f"{engine.name} ({engine.excluded})" for engine in found.engines if engine.excluded]
    if excluded:
        parts.append(tables.note(f"cannot be recommended: {formatting.one_line('; '.join(excluded), 1000)}"))
    blocks = [
        _levels(found, PERFORMANCE, width),
        _levels(found, RESOURCES, width),
        _encoders(found, width),
        _list("failed", [failure_line(engine) for engine in found.engines if engine.status == "failed"]),
        _list("not valid", problem_lines(found)),
        _list("outputs", output_lines(found)),
        _startup(found, width),
        _list("differences between the engines", parity_lines(found)),
        _list("", [*found.notes, *_legend(found)]),
    ]
    with console.capture() as capture:
        for part in parts:
            console.print(Padding(part, (0, 0, 0, 1)))
        for block in blocks:
            if block is not None:
                console.print()
                console.print(Padding(block, (0, 0, 0, 1)))
        if found.folder:
            console.print()
            console.print(Text(f" {found.folder}", style="dim"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _title(found: EngineResults) -> RenderableType:
    return Text.assemble((f"{subject(found)}\n\n", "dim"), (f"{formatting.one_line(found.answer, 1000)}\n", "bold"))


def subject(found: EngineResults) -> str:
    """`4 engines for my-model on NVIDIA H100, 3 rounds`."""
    count = len(found.engines)
    words = f"{count} engine{'' if count == 1 else 's'} for {formatting.one_line(found.model.name, 60)}"
    device = found.device
    if device.name:
        words += f" on {f'{device.count} x ' if device.count > 1 else ''}{formatting.one_line(device.name, 48)}"
    return f"{words}, {found.rounds} rounds" if found.rounds > 1 else words


SIGNS = {"none": "✗", "clear": "✓", "equal": "≈"}


def certainty(each: Recommendation) -> str:
    """`clear`: one engine is better than all others; `equal`: there is no clear difference; `none`: no engine can be recommended."""
    return "none" if not each.engine else "clear" if each.is_clear else "equal"


def left_out(each: Recommendation, found: EngineResults) -> list[str]:
    """Engines that this recommendation alone leaves out, and why; those that failed or disagree are left out of all."""
    general = {engine.name for engine in found.engines if engine.excluded}
    return [f"{name}: {why}" for name, why in each.left_out.items() if name not in general]


def _recommended(each: Recommendation, found: EngineResults) -> Table:
    """The sentence, with a sign for how sure it is."""
    made = Table.grid(padding=(0, 1))
    made.add_column(style={"none": "red", "clear": "green", "equal": "yellow"}[certainty(each)], width=1)
    made.add_column()
    made.add_row(SIGNS[certainty(each)], Text(formatting.one_line(each.text, 2000)))
    if each.engine and (without := left_out(each, found)):
        made.add_row("", Text(formatting.one_line(f"left out: {'; '.join(without)}", 600), style="dim"))
    return made


def _compact(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int, optional: Sequence[str]) -> Table:
    """A table whose columns are as wide as they have to be, without those that do not fit."""
    made = bare()
    made.add_column(f"{titles[0]} ", no_wrap=True)
    for title in titles[1:]:
        made.add_column(f"{title} ", justify="right", no_wrap=True)
    for cells in rows:
        made.add_row(*(f"{cell} " for cell in cells))
    return fitted(made, width, optional)


def _first_only(names: Sequence[str]) -> list[str]:
    """Names of a table's rows: only at the first of several rows of an engine."""
    return [
        formatting.one_line(name, _NAME) if not number or names[number - 1] != name else ""
        for number, name in enumerate(names)
    ]


def _levels(found: EngineResults, columns: Sequence[Column], width: int) -> Table | None:
    kept, rows = level_rows(found, columns)
    if not rows:
        return None
    names = _first_only([engine.name for engine, _, _ in rows])
    cells = [[name, level_text(level), *own] for name, (_, level, own) in zip(names, rows, strict=True)]
    optional = [column.title for column in sorted(kept, key=lambda column: column.keep) if column.keep]
    return _compact(["engine", "level", *(column.title for column in kept)], cells, width, optional)


def _encoders(found: EngineResults, width: int) -> Table | None:
    headers, rows = encoder_rows(found)
    if not rows:
        return None
    names = _first_only([engine.name for engine, _, _ in rows])
    cells = [[name, f"{line.batch}", f"{line.length}", *own] for name, (_, line, own) in zip(names, rows, strict=True)]
    return _compact(["engine", "batch", "length", *headers], cells, width, _ENCODER_OPTIONAL)


def problem_lines(found: EngineResults) -> list[str]:
    """Why levels of engines that took part are not valid."""
    where: dict[tuple[str, str], list[str]] = {}
    for engine in found.engines:
        for one in engine.levels:
            if not one.valid and engine.status == "ok":
                where.setdefault((engine.name, next(iter(one.problems), "no run")), []).append(one.name)
    return [
        f"{name}, {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {problem}"
        for (name, problem), names in where.items()
    ]


def failure_line(engine: EngineResult) -> str:
    """`sglang: not ready: it did not respond within 600 s`."""
    return ": ".join(part for part in (engine.name, engine.reason, engine.message) if part)


def output_lines(found: EngineResults) -> list[str]:
    """How each engine's outputs compare with the reference's."""
    return [f"{engine.name}: {engine.agreement.text}" for engine in found.engines if engine.agreement is not None]


def parity_lines(found: EngineResults) -> list[str]:
    """What differs, one line each, and what is not known in one line."""
    unknown = [f"{each.name} ({', '.join(each.values)})" for each in found.parity if each.kind == "unknown"]
    lines = [each.text for each in found.parity if each.kind != "unknown"]
    return [*lines, *([f"not known: {'; '.join(unknown)}"] if unknown else [])]


def startup_rows(found: EngineResults) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of a table of starts: when each phase was complete, in seconds since the process was started."""
    starts = [(engine, start) for engine in found.engines for start in engine.startup]
    phases = list(dict.fromkeys(name for _, start in starts for name in start.phases))
    rows = [
        [
            engine.name,
            start_kind(start),
            *(_seconds(start.phases.get(name)) for name in phases),
            _seconds(start.ready),
            _seconds(start.first_token),
        ]
        for engine, start in starts
    ]
    return ["engine", "start", *phases, "ready", "first token"], rows


def start_kind(start: StartUp) -> str:
    """`cold` only if the model's files were dropped from the page cache."""
    return "cold" if start.is_cold and start.dropped_cache else "first" if start.is_cold else "warm"


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def _startup(found: EngineResults, width: int) -> Table | None:
    headers, rows = startup_rows(found)
    if not rows:
        return None
    names = _first_only([name for name, *_ in rows])
    cells = [[name, *own] for name, (_, *own) in zip(names, rows, strict=True)]
    return _compact(["start-up", *headers[1:]], cells, width, headers[2:-2])


def _legend(found: EngineResults) -> Iterable[str]:
    if level_rows(found, PERFORMANCE)[1]:
        price = f", cost in {found.currency} per million output tokens" if _has_cost(found) else ""
        yield f"latencies in ms{price}; scaling: throughput per request in flight, relative to the lowest level"
    if any(engine.encoder for engine in found.engines):
        yield "latencies in ms; diff: difference of outputs from the reference's, relative to its largest magnitude"
    cells = [cell for _, _, row in (*level_rows(found, PERFORMANCE)[1], *encoder_rows(found)[1]) for cell in row]
    if any(tables.MARK in cell for cell in cells):
        yield f"{tables.MARK} too few values for this percentile"
    if found.recommendation:
        rules = "; ".join(f"{each.use}: {each.rule}" for each in found.recommendation)
        yield f"rules: {rules}"


def _has_cost(found: EngineResults) -> bool:
    return any(level.cost_per_million is not None for engine in found.engines for level in engine.levels)


def _list(title: str, lines: Sequence[str]) -> Table | None:
    if not lines:
        return None
    made = bare()
    made.show_header = bool(title)
    made.add_column(title, overflow="fold")
    for line in lines[:_MOST_NOTES]:
        made.add_row(Text(formatting.one_line(line, 600), style="" if title else "dim"))
    if len(lines) > _MOST_NOTES:
        made.add_row(Text(f"and {len(lines) - _MOST_NOTES} more, see --html", style="dim"))
    return made
