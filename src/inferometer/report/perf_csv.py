"""perf_analyzer's CSV, for spreadsheets and scripts that read it: one row per stage, times in microseconds.

The columns mean here:

    Concurrency                 the target of the stage; `Request Rate` in open loop (`Load` if stages of both kinds occur)
    Inferences/Second           responses per second times the batch size
    Client Send                 mean time from the intended send time to the send (0 in closed loop)
    Network+Server Send/Recv    mean of the rest, sending and receiving included, since the kernel stamps arrivals
    Server Queue ... Output     means that the server reports; empty if it does not. If it only reports how long the model
                                worked, all of that is Compute Infer, as is the time of its cache
    Client Recv                 0: see Network+Server Send/Recv
    p50 latency ...             end to end, as everywhere in the report; further percentiles that were requested follow
    Server Excess               by how much Server Queue ... Output exceed what the client saw, in which case
                                Network+Server Send/Recv is 0. The column exists only if a row has any
"""

import csv
import io
import math
from collections.abc import Sequence
from typing import IO

from inferometer.analysis.breakdown import LEAST_EXCESS
from inferometer.analysis.percentiles import label_of
from inferometer.analysis.settings import further_percentiles
from inferometer.analysis.summary import StageSummary, Summary
from inferometer.records import Run, StagePlan
from inferometer.units import format_number

COLUMNS = (
    "Inferences/Second",
    "Client Send",
    "Network+Server Send/Recv",
    "Server Queue",
    "Server Compute Input",
    "Server Compute Infer",
    "Server Compute Output",
    "Client Recv",
    "p50 latency",
    "p90 latency",
    "p95 latency",
    "p99 latency",
)
EXCESS = "Server Excess"


def write(run: Run, summary: Summary, file: IO[bytes]) -> None:
    """Write one row per stage."""
    plans = run.manifest.plan
    kinds = {plan.open for plan in plans}
    first = "Load" if len(kinds) > 1 else "Request Rate" if True in kinds else "Concurrency"
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    stages: Sequence[Summary | StageSummary] = summary.stages or (summary,)
    excess = [stage.breakdown.excess if stage.breakdown is not None else None for stage in stages]
    more = [EXCESS] if max((one for one in excess if one is not None), default=0.0) >= LEAST_EXCESS else []
    further = further_percentiles(run.manifest)
    lines.writerow([first, *COLUMNS, *(f"{label_of(name)} latency" for name in further), *more])
    for plan, stage, own in zip(plans, stages, excess, strict=True):
        lines.writerow([_target(plan), *_cells(stage, further), *(_microseconds(own) for _ in more)])
    file.write(text.getvalue().encode())


def _target(plan: StagePlan) -> str:
    return format_number(plan.rate, 6) if plan.open else str(plan.concurrency)


def _cells(stage: Summary | StageSummary, further: Sequence[str]) -> list[str]:
    throughput = stage.throughput.inferences or stage.throughput.requests
    latency = stage.metrics["e2e"]
    percentiles = [latency.value(name) for name in ("p50", "p90", "p95", "p99", *further)]
    parts = [_microseconds(seconds) for seconds in (*_parts(stage), *percentiles)]
    return ["" if throughput is None else format_number(throughput, 6), *parts]


def _parts(stage: Summary | StageSummary) -> tuple[float | None, ...]:
    """The seven columns from Client Send to Client Recv."""
    found = stage.breakdown
    if found is None:
        e2e, service = stage.metrics["e2e"].mean, stage.metrics["e2e_service"].mean
        client = None if e2e is None or service is None else e2e - service
        return client, service, None, None, None, None, None if service is None else 0.0
    before, after = found.compute_input or 0.0, found.compute_output or 0.0
    compute = None if found.compute is None else found.compute - before - after
    return found.client, found.overhead, found.queue, before, compute, after, 0.0


def _microseconds(seconds: float | None) -> str:
    """The time to the nanosecond; `inf` if failed requests count as infinitely slow, and empty if it is not known."""
    if seconds is None or math.isnan(seconds):
        return ""
    return "inf" if math.isinf(seconds) else f"{seconds * 1e6:.3f}".rstrip("0").rstrip(".")
