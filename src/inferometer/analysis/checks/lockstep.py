"""Did the users of a closed loop send together? Then the server saw bursts with pauses between them, not a steady load.

Users who start at the same moment and wait for responses that take equally long stay together for the whole run. It is lockstep if
more than half of the users send within 15 % of an end-to-end time: of users who are spread evenly, 15 % would.
"""

import numpy as np

from inferometer.analysis import settings
from inferometer.analysis.checks.evidence import Check, Evidence, StageEvidence
from inferometer.analysis.metrics import e2e_service
from inferometer.records import Columns
from inferometer.units import NS, format_seconds

FEWEST = 8
"""Users. Fewer are often close together by chance."""
WITHIN = 0.15
"""Share of the median end-to-end time within which users send together."""
TOGETHER = 0.6
"""Share of the users."""


def lockstep(evidence: Evidence) -> Check | None:
    """Check closed loops without think time; warn about the stage whose users are closest together.

    Not of an engine without a server: in static batches, all requests start together because that is what is measured.
    """
    if settings.is_in_process(evidence.run.manifest):
        return None
    found = [(share, stage) for stage in evidence.stages if (share := _together(evidence, stage)) is not None]
    if not found:
        return None
    share, stage = max(found, key=lambda each: each[0])
    if share < TOGETHER:
        return Check("lockstep", "pass", share, TOGETHER, f"{share:.0%} of the users send at about the same time")
    rows = evidence.run.records.rows[stage.steady]
    bad = (
        f"{share:.0%} of the users{stage.label} send within {format_seconds(WITHIN * _median(rows))} of each other: the server "
        "gets bursts with pauses between them. Use load.ramp_up: auto. If the server responds in batches, an open loop (load.rate) "
        "shows what independent users would see."
    )
    return Check("lockstep", "warn", share, TOGETHER, bad, stages=(stage.stage,))


def _together(evidence: Evidence, stage: StageEvidence) -> float | None:
    """Share of the users who send within a short time of a typical send; None if the stage has no such users."""
    plan = evidence.run.manifest.plan[stage.stage]
    rows = evidence.run.records.rows[stage.steady]
    rows = rows[rows["failure"] == 0]
    if plan.open or plan.think or plan.concurrency < FEWEST or len(rows) < 2 * plan.concurrency:
        return None
    sent = np.sort(rows["sent"])
    reach = round(WITHIN * _median(rows) * NS / 2)
    near = np.searchsorted(sent, sent + reach, "right") - np.searchsorted(sent, sent - reach, "left")
    return min(float(np.median(near)) / plan.concurrency, 1.0)


def _median(rows: Columns) -> float:
    return float(np.median(e2e_service(rows[rows["failure"] == 0])))
