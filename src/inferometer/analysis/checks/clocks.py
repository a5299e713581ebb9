"""Do the machines of a fleet agree on the time? Latencies do not depend on it, but the common schedule does."""

from inferometer.analysis import settings
from inferometer.analysis.checks.evidence import Check, Evidence
from inferometer.units import format_seconds

_REMEDY = "Let NTP (chrony) keep the clocks of the nodes together, use nodes that are nearer to each other, or lower the rate."


def clocks(evidence: Evidence) -> Check | None:
    """Check fleets of several machines. An error of the clocks moves the requests of one machine against those of the others: it
    changes the load if it is more than the mean time between two requests, and limits.clock_offset allows that much in any case."""
    manifest = evidence.run.manifest
    apart = settings.clocks_apart(manifest)
    if apart is None:
        return None
    limit = float(evidence.limits.clock_offset)
    gaps = {number: 1 / plan.rate for number, plan in enumerate(manifest.plan) if plan.open and plan.rate}
    stages = tuple(number for number, gap in gaps.items() if apart > max(limit, gap))
    if not stages:
        return Check(
            "clocks", "pass", apart, limit, f"the clocks of any two nodes are at most {format_seconds(apart)} apart"
        )
    worst = min(stages, key=gaps.__getitem__)
    bad = (
        f"The clocks of two nodes may be {format_seconds(apart)} apart, and the requests{evidence.stages[worst].label} are "
        f"{format_seconds(gaps[worst])} apart on average: they were not sent in the planned pattern. {_REMEDY} Or allow it with "
        "limits.clock_offset."
    )
    return Check("clocks", "fail", apart, max(limit, gaps[worst]), bad, stages=stages)
