"""perf_analyzer's CSV, for the spreadsheets and scripts that read it: one line a stage, times in microseconds.

What its columns are here:

    Concurrency                 what the stage asked for; `Request Rate` where it is a rate (`Load` where stages differ in kind)
    Inferences/Second           answers a second times the batch size
    Client Send                 from the intended instant to the send (0 in closed loop), on average
    Network+Server Send/Recv    on average, what is left: sending and receiving included, as arrivals are stamped by the kernel
    Server Queue ... Output     as the server says, on average; empty where it does not. Where it only says how long the model
                                worked, all of it is Compute Infer, as is what its cache took
    Client Recv                 0: see Network+Server Send/Recv
    p50 latency ...             end to end, as everywhere in the report
    Server Excess               by how much Server Queue ... Output exceed what the client saw of them, whose
                                Network+Server Send/Recv is 0 then. There only where some line has any
"""

import csv
import io
import math
from collections.abc import Sequence
from typing import IO

from inferometer.analysis.breakdown import LEAST_EXCESS
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
    plans = run.manifest.plan
    kinds = {plan.open for plan in plans}
    first = "Load" if len(kinds) > 1 else "Request Rate" if True in kinds else "Concurrency"
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    found: Sequence[Summary | StageSummary] = summary.stages or (summary,)
    excess = [stage.breakdown.excess if stage.breakdown is not None else None for stage in found]
    more = [EXCESS] if max((one for one in excess if one is not None), default=0.0) >= LEAST_EXCESS else []
    lines.writerow([first, *COLUMNS, *more])
    for plan, stage, beyond in zip(plans, found, excess, strict=True):
        lines.writerow([_level(plan), *_cells(stage), *(_microseconds(beyond) for _ in more)])
    file.write(text.getvalue().encode())


def _level(plan: StagePlan) -> str:
    return format_number(plan.rate, 6) if plan.open else str(plan.concurrency)


def _cells(stage: Summary | StageSummary) -> list[str]:
    throughput = stage.throughput.inferences or stage.throughput.requests
    latency = stage.metrics["e2e"]
    percentiles = [latency.value(name) for name in ("p50", "p90", "p95", "p99")]
    parts = [_microseconds(seconds) for seconds in (*_parts(stage), *percentiles)]
    return ["" if throughput is None else format_number(throughput, 6), *parts]


def _parts(stage: Summary | StageSummary) -> tuple[float | None, ...]:
    """The seven columns from Client Send to Client Recv."""
    found = stage.breakdown
    if found is None:
        e2e, service = stage.metrics["e2e"].mean, stage.metrics["e2e_service"].mean
        client = None if e2e is None or service is None else e2e - service
        return client, service, None, None, None, None, None if service is None else 0.0
    given, taken = found.compute_input or 0.0, found.compute_output or 0.0
    return found.client, found.network, found.queue, given, found.compute - given - taken, taken, 0.0


def _microseconds(seconds: float | None) -> str:
    return f"{seconds * 1e6:.0f}" if seconds is not None and math.isfinite(seconds) else ""
