"""Encoders: the latency of a forward pass by engine, batch size and sequence length, and which engine to use."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from inferometer.analysis import log_ratio
from inferometer.analysis.blocks import BLOCKS, Placed
from inferometer.analysis.efficiency import Estimate, Interval
from inferometer.analysis.engine_figures import EngineLevel, Latency, LevelThroughput
from inferometer.analysis.percentiles import Distribution, distribution
from inferometer.analysis.recommendation import Found, Held, Recommendation, Use, choose
from inferometer.analysis.rounds import Ratio, Rounds, geometric, judged, log_ratio_of, together
from inferometer.analysis.student import quantile
from inferometer.analysis.summary import FIGURES
from inferometer.campaign import EncoderLevel, EngineRecord
from inferometer.units import format_number, format_seconds

Cell = tuple[int, int]
"""Batch size and sequence length."""


class EncoderFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of an encoder at one batch size and sequence length, all rounds together. Seconds; null for what is not known."""

    batch: int
    length: int
    name: str
    repeats: int
    valid: bool
    problems: tuple[str, ...] = ()
    count: int = 0
    """Measured calls."""
    mean: float | None = None
    sd: float | None = None
    min: float | None = None
    max: float | None = None
    median: float | None = None
    p95: float | None = None
    p99: float | None = None
    ci: dict[str, Interval] = {}
    unsupported: tuple[str, ...] = ()
    """Percentiles of too few calls."""
    throughput: Estimate | None = None
    """Sequences per second."""
    difference: float | None = None
    """Largest difference of an output from the reference's, relative to the reference's largest magnitude."""
    memory: int | None = None
    """Peak memory of the device in bytes; on a CPU, of the process."""
    energy_per_sequence: float | None = None
    """J."""


def encoder_figures(engine: EngineRecord, tolerance: float) -> tuple[dict[Cell, Rounds], list[EncoderFigures]]:
    """The mean latency of each cell by round, and the lines of the report."""
    groups: dict[Cell, list[EncoderLevel]] = {}
    for level in engine.encoder:
        groups.setdefault((level.batch, level.length), []).append(level)
    rounds, lines = {}, []
    for cell, levels in sorted(groups.items()):
        measured = [level for level in levels if level.seconds]
        found = _line(cell, levels, measured, tolerance)
        lines.append(found)
        if found.valid:
            rounds[cell] = _rounds(measured)
    return rounds, lines


def as_level(line: EncoderFigures) -> EngineLevel:
    """The same line as a level, for readers of the JSON file that know only levels: a call is a request, and its duration `e2e`."""
    e2e = Latency(
        count=line.count,
        mean=line.mean,
        p50=line.median,
        p95=line.p95,
        p99=line.p99,
        ci={"p50" if name == "median" else name: ends for name, ends in line.ci.items()},
        unsupported=line.unsupported,
    )
    calls = line.throughput
    low, high = (None, None) if calls is None else (None if end is None else end / line.batch for end in calls.ci)
    return EngineLevel(
        by="batch",
        level=line.batch,
        name=line.name,
        length=line.length,
        repeats=line.repeats,
        valid=line.valid,
        quotable=dict.fromkeys(FIGURES, line.valid),
        problems=line.problems,
        e2e=e2e if line.count else None,
        throughput=LevelThroughput(
            requests=None if calls is None else Estimate(calls.value / line.batch, (low, high)),
            sequences=calls,
        ),
    )


def _line(
    cell: Cell, levels: Sequence[EncoderLevel], measured: Sequence[EncoderLevel], tolerance: float
) -> EncoderFigures:
    differences = [level.difference for level in measured if level.difference is not None]
    problems = [level.error or "no call was measured" for level in levels if level.error or not level.seconds]
    worst = max(differences, default=None)
    if worst is not None and not worst <= tolerance:
        problems.append(
            f"its outputs differ from the reference's by {format_number(worst, 2)}, more than {tolerance:g}"
        )
    made = EncoderFigures(
        batch=cell[0],
        length=cell[1],
        name=f"batch {cell[0]}, length {cell[1]}",
        repeats=len(measured),
        valid=bool(measured) and not problems,
        problems=tuple(dict.fromkeys(problems)),
        difference=worst,
        memory=max((level.memory for level in measured if level.memory is not None), default=None),
        energy_per_sequence=_energy(measured),
    )
    if not measured:
        return made
    seconds = [second for level in measured for second in level.seconds]
    found = _distribution(seconds)
    mean = _rounds(measured).estimate()
    low, high = (None if not end else cell[0] / end for end in mean.ci)
    return msgspec.structs.replace(
        made,
        count=len(seconds),
        mean=found.mean,
        sd=found.std,
        min=found.min,
        max=found.max,
        median=found.value("p50"),
        p95=found.value("p95"),
        p99=found.value("p99"),
        ci={"mean": mean.ci, "median": found.ci.get("p50", (None, None)), "p95": found.ci.get("p95", (None, None)), "p99": found.ci.get("p99", (None, None))},
        unsupported=tuple(name for name in ("p50", "p95", "p99") if name in found.unsupported),
        throughput=Estimate(cell[0] / mean.value, (high, low)),
    )  # fmt: skip


def _energy(measured: Sequence[EncoderLevel]) -> float | None:
    known = [level for level in measured if level.energy is not None]
    sequences = sum(level.batch * len(level.seconds) for level in known)
    if not sequences or len(known) < len(measured):
        return None
    return math.fsum(level.energy or 0.0 for level in known) / sequences


def _distribution(seconds: Sequence[float]) -> Distribution:
    """Statistics of calls that follow each other: neighbours in time may resemble each other (blocks.py)."""
    values = np.array(seconds)
    ends = np.cumsum(values)
    window = float(ends[-1])
    block = (
        np.minimum((ends / window * BLOCKS).astype(np.intp), BLOCKS - 1) if window else np.zeros(len(values), np.intp)
    )
    if len(values) < 2 * BLOCKS:
        return distribution(values, "s")
    return distribution(values, "s", placed=Placed(block, np.zeros(0, np.intp), window))


def _rounds(measured: Sequence[EncoderLevel]) -> Rounds:
    """The mean latency of each round; of one round, with the error from its own calls."""
    means = {level.repeat: math.fsum(level.seconds) / len(level.seconds) for level in measured}
    if len(means) > 1:
        return Rounds(means)
    found = _distribution(measured[0].seconds)
    low, high = found.ci.get("mean", (None, None))
    (mean,) = means.values()
    error = (
        None if low is None or high is None else (high - low) / (2 * quantile(log_ratio.CONFIDENCE, BLOCKS - 1) * mean)
    )
    return Rounds(means, error, (low, high))


# --- which engine to use ---------------------------------------------------------------------------------------------


def recommend_encoders(
    cells: Mapping[str, Mapping[Cell, Rounds]], excluded: Mapping[str, str]
) -> tuple[Recommendation, ...]:
    """The fastest for one input at a time, and the one with the highest throughput; over the lengths that all of them were measured at."""
    usable = {name: own for name, own in cells.items() if own}
    left_out = dict(excluded) | {name: "no batch size and length is valid" for name, own in cells.items() if not own}
    smallest = min((cell[0] for own in usable.values() for cell in own), default=1)
    single = {name: {cell[1]: own[cell] for cell in own if cell[0] == smallest} for name, own in usable.items()}
    return (
        _chosen("encoder, one input", "for one input at a time", single, left_out, "is", "as fast as", smallest),
        _chosen("encoder, batches", "for batches", {name: _best_rates(own) for name, own in usable.items()}, left_out, "processes", "as many sequences as"),
    )  # fmt: skip


def _best_rates(own: Mapping[Cell, Rounds]) -> dict[int, Rounds]:
    """For each length, the time per sequence at the batch size where it is lowest."""
    best: dict[int, Rounds] = {}
    for (batch, length), time in own.items():
        each = time.scaled(1 / batch)
        if length not in best or each.value < best[length].value:
            best[length] = each
    return best


def _chosen(
    use: Use, title: str, times: Mapping[str, Mapping[int, Rounds]], excluded: Mapping[str, str], verb: str, like: str, batch: int | None = None
) -> Recommendation:  # fmt: skip
    lengths = sorted(set.intersection(*(set(own) for own in times.values()))) if times else []
    kept = {name: {length: own[length] for length in lengths} for name, own in times.items()} if lengths else {}

    def text(own: Mapping[int, Rounds]) -> str:
        mean = geometric(own)
        over = f"length {lengths[0]}" if len(lengths) == 1 else f"lengths {lengths[0]} to {lengths[-1]}"
        if batch is not None:
            return (
                f"{format_seconds(mean)} on average over {over}"
                if len(lengths) > 1
                else f"{format_seconds(mean)} at {over}"
            )
        rate = f"{1 / mean:,.0f}" if mean < 1e-3 else format_number(1 / mean, 3)
        return f"{rate} sequences/s on average over {over}" if len(lengths) > 1 else f"{rate} sequences/s at {over}"

    found: dict[str, Found] = {
        name: Held(
            name,
            Rounds({0: 1 / geometric(own)}),
            "sequences/s" if batch is None else "s",
            text(own),
            is_inverted=batch is not None,
        )
        for name, own in kept.items()
    }

    def compare(best: Held, other: Held) -> Ratio:
        pairs = [log_ratio_of(kept[best.engine][each], kept[other.engine][each]) for each in lengths]
        known = [each for each in pairs if each is not None]
        ratio = best.figure.value / other.figure.value
        return judged(together(known) if len(known) == len(pairs) else None, ratio, other.engine)

    return choose(use, title, found, excluded, verb, like, compare)
