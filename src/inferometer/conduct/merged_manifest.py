"""Whether parts belong to one run, and the manifest of that run."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from inferometer.errors import UserError
from inferometer.records import Manifest, Merged, MergedPart, Outcome, RunPart, StagePlan
from inferometer.units import NS

_TOGETHER_NS = NS
"""Parts whose starts are set to instants farther apart than this did not run together. Those with `--start-at +30s` differ by a little."""
_OWN = ("output", "storage", "report", "export")
"""Sections of the config that may differ between parts: they say nothing about what was measured."""


class StoredPart(NamedTuple):
    """A part as it is stored."""

    folder: Path
    manifest: Manifest
    part: RunPart
    requests: int

    @property
    def t0_wall_ns(self) -> int:
        """Its t=0 by its own wall clock. A part that was killed has recorded only when it was to start."""
        return self.manifest.t0_wall_ns or self.part.start_ns

    @property
    def processes(self) -> int:
        found = self.manifest.host.get("processes")
        return found if isinstance(found, int) else 1


# --- whether they belong together ------------------------------------------------------------------------------------


def check_alike(parts: Sequence[StoredPart]) -> None:
    """Raise UserError when these are not parts of one run, or one part is there twice. They are ordered by number."""
    first = parts[0]
    for other in parts[1:]:
        for what, describe in _ALIKE.items():
            one, two = describe(first), describe(other)
            if one != two:
                raise UserError(
                    f"{first.folder.name} and {other.folder.name} are not parts of one run: {what} differs{_difference(one, two)}",
                    "merge only the parts of one run: all from the same file, with the same --start-at and the same N in --shard K/N",
                )
        if abs(first.part.start_ns - other.part.start_ns) > _TOGETHER_NS:
            raise UserError(
                f"{first.folder.name} and {other.folder.name} are not parts of one run: "
                f"the first was to start at {_instant(first.part.start_ns)}, the other at {_instant(other.part.start_ns)}",
                "merge only parts that ran together: give all of them the same --start-at",
            )
    for one, two in pairwise(parts):
        if one.part.number == two.part.number:
            raise UserError(
                f"part {one.part.number} is there twice: {one.folder.name} and {two.folder.name}",
                "leave out one of them",
            )


def _config(part: StoredPart) -> dict[str, object]:
    return {key: value for key, value in part.manifest.config.items() if key not in _OWN}


def _plan(part: StoredPart) -> list[StagePlan]:
    """The load of all parts. How long the users take to start follows from each part's own probe."""
    return [msgspec.structs.replace(stage, ramp_up=0.0) for stage in part.part.plan]


_ALIKE: dict[str, Callable[[StoredPart], object]] = {
    "the number of parts": lambda part: part.part.of,
    "the seed": lambda part: part.manifest.seeds.get("seed"),
    "the config": _config,
    "the workload's digest": lambda part: part.manifest.workload.get("digest"),
    "the plan": _plan,
    "the version of inferometer": lambda part: part.manifest.inferometer,
}
"""What all parts of a run have in common."""


def _difference(one: object, two: object) -> str:
    """Say how two values differ: the first key for mappings, the values themselves if they are short."""
    if isinstance(one, dict) and isinstance(two, dict):
        key = next(key for key in (*one, *two) if one.get(key) != two.get(key))
        inner = _difference(one.get(key), two.get(key))
        return f" in {key}{inner}" if inner.startswith(" (") or not inner else f" in {key}.{inner.removeprefix(' in ')}"
    if isinstance(one, str | int | float) and isinstance(two, str | int | float):
        return f" ({str(one)[:60]} against {str(two)[:60]})"
    return ""


def _instant(ns: int) -> str:
    return datetime.fromtimestamp(ns / NS, UTC).isoformat(timespec="milliseconds")


# --- the manifest ----------------------------------------------------------------------------------------------------


def merged_manifest(parts: Sequence[StoredPart]) -> Manifest:
    """Return the manifest of the run that these parts make."""
    head, manifests = parts[0].manifest, [each.manifest for each in parts]
    start = min(each.t0_wall_ns for each in parts)
    merged = Merged(parts[0].part.of, tuple(map(_merged_part, parts)))
    observed = next((each for each in manifests if each.statistics), head)
    return msgspec.structs.replace(
        head,
        started=_instant(start),
        t0_wall_ns=start,
        plan=_whole_plan(parts),
        workload=_workload(parts),
        probe=msgspec.structs.replace(head.probe, processes_because=""),
        clock=_in_common([each.clock for each in manifests]) | {"step_ns": _largest_step(manifests)},
        host=_in_common([each.host for each in manifests])
        | {
            "processes": sum(each.processes for each in parts),
            "has_server": all(each.host.get("has_server") is True for each in manifests),
        },
        statistics=observed.statistics,
        no_statistics=observed.no_statistics,
        observer_errors=_by_part(parts, lambda each: each.observer_errors),
        observer_cpu=_summed([each.observer_cpu for each in manifests]),
        outcome=_outcome(parts, merged),
        part=None,
        merged=merged,
    )


def _merged_part(each: StoredPart) -> MergedPart:
    outcome = each.manifest.outcome
    return MergedPart(
        number=each.part.number,
        run=each.folder.name,
        t0_wall_ns=each.t0_wall_ns,
        requests=each.requests,
        processes=each.processes,
        host=each.manifest.host,
        clock=each.manifest.clock,
        interrupted=outcome.interrupted,
        errors=outcome.errors,
    )


def _whole_plan(parts: Sequence[StoredPart]) -> tuple[StagePlan, ...]:
    """The load of all parts; the users of a closed loop have started when those of the slowest part have."""
    stages = zip(*(each.part.plan for each in parts), strict=True)
    return tuple(msgspec.structs.replace(each[0], ramp_up=max(stage.ramp_up for stage in each)) for each in stages)


def _workload(parts: Sequence[StoredPart]) -> dict[str, object]:
    made = sum(distinct for each in parts if isinstance(distinct := each.manifest.workload.get("distinct"), int))
    limit = parts[0].part.distinct
    found = parts[0].manifest.workload | {"distinct": min(made, limit) if limit else made}
    if any(each.manifest.workload.get("salt") != found.get("salt") for each in parts):
        found.pop("salt", None)  # no single word gives the same prompts again
    return found


def _outcome(parts: Sequence[StoredPart], merged: Merged) -> Outcome:
    outcomes = [each.manifest.outcome for each in parts]
    machines = f"{len(_hosts(parts))} machines" if is_on_several_machines(parts) else "one machine"
    note = (
        f"merged from {len(parts)} of {merged.of} parts, measured on {machines}: latencies are by the clock of one part each, but "
        "the clocks of different parts were not compared, and figures over time are as exact as these agree"
    )
    return Outcome(
        interrupted=any(each.interrupted for each in outcomes),
        errors=tuple(f"part {each.part.number}: {line}" for each in parts for line in each.manifest.outcome.errors),
        given_up=tuple(sorted({stage for each in outcomes for stage in each.given_up})),
        notes=(note, *dict.fromkeys(line for each in outcomes for line in each.notes)),
        trips=tuple(trip for each in outcomes for trip in each.trips),
        cut_short=tuple(cut for each in outcomes for cut in each.cut_short),
    )


def is_on_several_machines(parts: Sequence[StoredPart]) -> bool:
    return len(_hosts(parts)) > 1


def _hosts(parts: Sequence[StoredPart]) -> set[object]:
    return {each.manifest.host.get("name") for each in parts}


def _largest_step(manifests: Sequence[Manifest]) -> int:
    steps = [step for each in manifests if isinstance(step := each.clock.get("step_ns"), int)]
    return max(steps, key=abs, default=0)


def _in_common(trees: Sequence[dict[str, object]]) -> dict[str, object]:
    """Facts about several machines: one value if it is the same for all, else all values."""
    values = {key: list(dict.fromkeys(_word(tree.get(key)) for tree in trees)) for key in trees[0]}
    return {key: trees[0][key] if len(found) == 1 else ", ".join(found) for key, found in values.items()}


def _word(value: object) -> str:
    return "unknown" if value is None else str(value)


def _by_part(parts: Sequence[StoredPart], errors_of: Callable[[Manifest], dict[str, str]]) -> dict[str, str]:
    """Why observations of any part are missing."""
    found: dict[str, str] = {}
    for each in parts:
        for name, why in errors_of(each.manifest).items():
            found.setdefault(name, f"part {each.part.number}: {why}")
    return found


def _summed(trees: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for tree in trees for name in tree)
    return {name: math.fsum(tree.get(name, 0.0) for tree in trees) for name in names}
