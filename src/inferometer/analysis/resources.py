"""The use of resources over the windows of a run: CPU, memory, network, disk, GPUs and energy."""

import msgspec

from inferometer.analysis.throughput import Spans
from inferometer.records import Run


class ResourceUse(msgspec.Struct, frozen=True):
    """What a stage, or the whole run, took of the machine."""


class ResourceUses(msgspec.Struct, frozen=True):
    whole: ResourceUse | None = None
    stages: tuple[ResourceUse | None, ...] = ()


def resource_uses(run: Run, spans: Spans) -> ResourceUses:
    """Return the use of resources in the run and in each stage; None if none was recorded."""
    return ResourceUses(stages=(None,) * len(spans.windows))
