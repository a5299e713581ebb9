"""Do the server's metrics show only this client's requests, counted without a restart?"""

import numpy as np

from inferometer.analysis.checks.evidence import Check, Evidence
from inferometer.analysis.server_notes import COUNTS


def other_clients(evidence: Evidence) -> Check | None:
    """Look for more completed requests than this client sent, all attempts and failures included."""
    merged = evidence.run.manifest.merged
    if evidence.run.manifest.part is not None or (merged is not None and merged.missing):
        return None  # the server's metrics count the requests of all parts
    counters = evidence.server.figures.counters if evidence.server is not None else {}
    sent = int(evidence.run.records.rows["attempts"].sum(dtype=np.int64))
    if "requests" not in counters or not sent:
        return None
    completed = counters["requests"].delta
    more = max(completed / sent - 1, 0.0)
    counts = f"the server completed {completed:,.0f} requests during the run, and this client sent {sent:,}"
    if more <= COUNTS:
        return Check("other_clients", "pass", more, COUNTS, counts)
    bad = f"{counts.capitalize()}: other clients used it, so its capacity is not all that was measured. Measure a server that nobody else uses, or take the load as part of what is measured."
    return Check("other_clients", "warn", more, COUNTS, bad)


def restarts(evidence: Evidence) -> Check | None:
    """Look for counters that fell, which they do only when the server starts again."""
    if evidence.server is None:
        return None
    found = evidence.server.figures
    by_name = found.counters | found.histograms
    if not by_name:
        return None
    resets = max(each.resets for each in by_name.values())
    if not resets:
        return Check("restarts", "pass", 0, 0, "no counter of the server fell")
    names = ", ".join(sorted(name for name, each in by_name.items() if each.resets)[:3])
    times = "once" if resets == 1 else f"{resets:,} times"
    bad = f"The server was restarted during the run: its counters ({names}) fell {times}. Its own figures miss what was counted before, and latencies include the start. Find out why in the server's log, and run again."
    return Check("restarts", "warn", resets, 0, bad)
