"""The tokens of a text response: how many, and how fast they arrived."""

import math
from itertools import pairwise
from typing import Any

from inferometer.infer.result import Result
from inferometer.units import NS


def measured(result: Result) -> dict[str, Any]:
    """Counts and times (s); None if unknown, or if it did not happen."""
    output = result.output
    assert output is not None
    usage, arrivals = output.usage, output.arrivals
    seen = sum(count for _, count in arrivals)
    counted = usage.n_out if usage is not None and usage.n_out >= 0 else seen or None
    gaps = [(late - early) / NS for (early, _), (late, _) in pairwise(arrivals)]
    e2e = (result.instants.done - result.instants.sent) / NS
    first = arrivals[0][0] / NS if arrivals else None
    return {
        "input": usage.n_in if usage is not None and usage.n_in >= 0 else None,
        "output": counted,
        "cached": usage.cached if usage is not None and usage.cached >= 0 else None,
        "reasoning": usage.reasoning if usage is not None and usage.reasoning >= 0 else None,
        "counted_by": None if counted is None else "server" if usage is not None and usage.n_out >= 0 else "chunks",
        "chunks": len(arrivals),
        "ttft": first,
        "itl_mean": math.fsum(gaps) / len(gaps) if gaps else None,
        "itl_max": max(gaps) if gaps else None,
        "e2e": e2e,
        "per_second": counted / e2e if counted and e2e else None,
    }
