"""What a run says about the metrics that it offers live: the labels, what the run is about, and its planned rate."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial

from inferometer import __version__, schedule
from inferometer.config.data import Mix
from inferometer.config.loads import Constant, Gamma, Poisson, Replay, StageSpec, stages_of
from inferometer.prepare.plans import part_plan, whole_plan
from inferometer.prepare.setup import Setup
from inferometer.publish.families import LiveFamilies, RunInfo
from inferometer.publish.live_counts import LiveCounts
from inferometer.types import Plan
from inferometer.units import NS


def live_families(setup: Setup) -> LiveFamilies:
    """Return the metrics of this run, for an exporter."""
    config, reached = setup.config, setup.reached
    specs = stages_of(config.load)
    classes = [class_.name for class_ in config.data.classes] if isinstance(config.data, Mix) else []
    info = RunInfo(
        run=setup.spool.parent.name,
        url=", ".join(target.url for target in reached.targets),
        model=reached.model,
        api=config.server.api,
        version=__version__,
    )
    plan = None
    if any(isinstance(spec, Replay) for spec in specs):
        plan = part_plan(config, whole_plan(config, setup.probe.e2e_ns, setup.turns), setup.part)
    counts = LiveCounts(setup.spool, setup.shards, stage_labels(setup.stages), classes)
    parts = setup.part.of if setup.part else 1
    return LiveFamilies(counts, info, partial(target_rate, specs, setup.turns, plan, parts=parts))


def stage_labels(names: Sequence[str]) -> list[str]:
    """Return a label for each stage: its name, with its number in front if several have the same."""
    counted = Counter(names)
    return [name if counted[name] == 1 else f"{number} {name}" for number, name in enumerate(names, 1)]


def target_rate(
    specs: list[StageSpec], turns: float, plan: Plan | None, stage: int, seconds: float, parts: int = 1
) -> float | None:
    """Return the planned requests per second of a stage, this long after it began; None for a closed loop."""
    spec = specs[stage]
    rate = schedule.rate_at(spec, int(seconds * NS), whole=plan, parts=parts)
    if rate is None:
        return None
    has_ended = seconds >= _planned_seconds(spec)
    return 0.0 if has_ended else rate * (turns if turns and spec.unit == "sessions" else 1)


def _planned_seconds(spec: StageSpec) -> float:
    """Return how long the stage is meant to send."""
    lengths = [float(spec.duration)] if spec.duration else []
    if spec.requests and isinstance(spec, Constant | Poisson | Gamma) and not isinstance(spec.rate, str):
        lengths.append(spec.requests / spec.rate)
    return min(lengths, default=math.inf)
