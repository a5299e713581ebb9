"""Where the time of a request went: the parts of the mean end-to-end time, for servers that report their own times."""

from inferometer.analysis import settings
from inferometer.analysis.breakdown import LEAST_EXCESS, PER_REQUEST, WHY_EXCESS, Breakdown
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import formatting
from inferometer.report.document import Note, Section, Table

TITLE, LEAD = "Where the time went", "The mean end-to-end time, by what it was spent on."
_OVERHEAD = "overhead: network and server"
_PROTOCOL = "protocol: the rest of the server's time"


def section(run: Run, summary: Summary) -> Section:
    """The parts, or why they are not known."""
    if summary.breakdown is not None:
        return Section("breakdown", TITLE, [parts(summary.breakdown)], LEAD)
    if summary.no_breakdown and summary.counts.ok and _is_expected(run):
        reason = formatting.one_line(summary.no_breakdown, 1000)
        return Section(
            "breakdown", TITLE, [Note((("where the time went", "strong"), (f"   not known: {reason}", "")), "")]
        )
    return Section("breakdown", TITLE, [])


def _is_expected(run: Run) -> bool:
    """OpenAI-style endpoints and engines without a server do not report their own time, so its absence is not worth a line."""
    has_server = bool(run.manifest.server) and not settings.is_in_process(run.manifest)
    return has_server or not settings.sends_text(run.manifest)


def parts(found: Breakdown) -> Table:
    """The parts of the mean end-to-end time, and where they come from."""
    outside = {"network": found.network, "protocol": found.protocol}
    known = {name: value for name, value in outside.items() if value is not None} or {"overhead": found.overhead}
    parts = {"client": found.client, **known, **found.reported}
    inner = {
        "input": found.compute_input,
        "inference": found.compute_infer,
        "output": found.compute_output,
        "cache": found.cache,
    }
    whole = found.e2e + found.excess
    mean = ("mean", *map(formatting.milliseconds, (found.e2e, *parts.values())))
    share = ("share", "", *(f"{value / whole:.0%}" if whole else "" for value in parts.values()))
    notes = []
    if any(inner.values()):
        named = (f"{name} {formatting.milliseconds(value)}" for name, value in inner.items() if value)
        batch = f"; {found.batch:.3g} inferences per execution" if found.batch else ""
        notes.append(f"compute: {', '.join(named)}{batch}")
    if found.source == PER_REQUEST:
        outside_of = _OVERHEAD if "overhead" in known else _PROTOCOL
        notes.append(f"{' and '.join(found.reported) or 'total'}: by the server, per request; {outside_of}")
    else:
        notes.append(f"queue and compute: by the server, averages of all requests; {_OVERHEAD}")
        if found.counted is not None and found.counted > found.requests:
            others = found.counted - found.requests
            notes.append(f"the server counted {others:,} more requests: from other clients, or ones that failed here")
    if found.rtt is not None:
        notes.append(f"shortest round trip, by the kernel: {formatting.milliseconds(found.rtt)} ms")
    if any(value < 0 for value in known.values()):
        notes.append("a negative mean: the server's clock and the client's disagree by at least that much")
    if found.excess >= LEAST_EXCESS:
        excess = formatting.milliseconds(found.excess)
        notes.append(
            f"the server reports {excess} ms more than the client saw: {WHY_EXCESS[found.source]}; "
            "shares are of the sum of the parts"
        )
    return Table("where the time went, ms", ["e2e", *parts], [mean, share], notes=notes)
