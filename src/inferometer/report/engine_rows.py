"""The rows and lines of a comparison of engines, as the terminal, Markdown and the HTML page print them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inferometer.analysis.efficiency import Estimate
from inferometer.analysis.encoder_results import EncoderFigures
from inferometer.analysis.engine_figures import EngineLevel, Latency
from inferometer.analysis.engine_results import EngineResult, EngineResults
from inferometer.analysis.recommendation import Recommendation, listed
from inferometer.campaign import StartUp
from inferometer.report import cost, formatting
from inferometer.report.document import MARK
from inferometer.units import format_bytes, format_seconds

_SIGNS = {"met": "✓", "missed": "✗", "undecided": "?", "": ""}
LEVELS = {"concurrency": "{} in flight", "batch": "batch {}", "rate": "{}/s"}
"""A level in a row of a table."""


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
        mark = MARK if statistic in found.unsupported else ""
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
    Column("req/s", lambda level, _: _estimate(level.throughput.requests), 7),
    Column("tokens/s", lambda level, _: _estimate(level.throughput.output_tokens)),
    Column("95 % CI", lambda level, _: _relative(level.throughput.output_tokens or level.throughput.requests), 3),
    Column("scaling", lambda level, _: "-" if level.scaling is None else f"{level.scaling.value:.2f}", 8),
    Column("ttft p50", _latency("ttft", "p50"), 4),
    Column("ttft p95", _latency("ttft", "p95"), 6),
    Column("ttft p99", _latency("ttft", "p99"), 1),
    Column("tpot p50", _latency("tpot", "p50"), 5),
    Column("tpot p95", _latency("tpot", "p95"), 2),
    Column("e2e p50", _latency("e2e", "p50"), 9),
    Column("e2e p95", _latency("e2e", "p95"), 2),
    Column("SLO", lambda level, _: _SIGNS[level.outcome]),
    Column("", lambda level, _: _mark(level)),
)
RESOURCES = (
    Column("CPU", lambda level, _: formatting.number(_used(level, "cpu"), 2), 8),
    Column("memory", lambda level, _: size(_used(level, "memory")), 9),
    Column("GPU mem", lambda level, _: size(_used(level, "gpu_memory")), 9),
    Column("GPU", lambda level, _: share(_used(level, "gpu_use")), 5),
    Column("W", lambda level, _: formatting.number(_used(level, "power"), 0), 3),
    Column("J/token", lambda level, _: formatting.number(level.energy_per_token), 6),
    Column("cost/M", lambda level, _: "-" if level.cost_per_million is None else cost.money(level.cost_per_million.value), 7),
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
    ("p95", lambda line: formatting.milliseconds(line.p95) + (MARK if "p95" in line.unsupported else "")),
    ("p99", lambda line: formatting.milliseconds(line.p99) + (MARK if "p99" in line.unsupported else "")),
    ("seq/s", lambda line: _estimate(line.throughput)),
    ("diff", lambda line: "-" if line.difference is None else f"{line.difference:.1e}"),
    ("memory", lambda line: size(line.memory)),
    ("J/seq", lambda line: formatting.number(line.energy_per_sequence)),
    ("", lambda line: "" if line.valid else "not valid"),
)


def encoder_rows(found: EngineResults) -> tuple[list[str], list[tuple[EngineResult, EncoderFigures, list[str]]]]:
    """Headers, and the cells of each engine, batch size and length."""
    every = [(engine, line) for engine in found.engines for line in engine.encoder]
    kept = [(name, read) for name, read in ENCODER_COLUMNS if any(read(line) not in ("-", "") for _, line in every)]
    return [name for name, _ in kept], [(engine, line, [read(line) for _, read in kept]) for engine, line in every]


# --- in words --------------------------------------------------------------------------------------------------------


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


def failure_lines(found: EngineResults) -> list[str]:
    """A line for each reason, with the engines that failed for it."""
    names: dict[str, list[str]] = {}
    for engine in found.engines:
        if engine.status == "failed":
            line = failure_line(engine)
            names.setdefault(line.removeprefix(engine.name), []).append(engine.name)
    return [f"{listed(each)}{line}" for line, each in names.items()]


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
