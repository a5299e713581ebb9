"""Are all parts of a merged run there, and did they run together?"""

from inferometer.analysis.checks.evidence import Check, Evidence
from inferometer.records import MergedPart
from inferometer.units import NS, format_seconds

TOGETHER = 0.1
"""Seconds by which parts may start apart before it is a warning."""


def parts(evidence: Evidence) -> Check | None:
    """Judge a run that was merged from parts. What was interrupted in a part has its own check, too; this one names the part."""
    merged = evidence.run.manifest.merged
    if merged is None:
        return None
    if missing := merged.missing:
        bad = f"{_numbers(missing)} of {merged.of}, counted from 0, {'is' if len(missing) == 1 else 'are'} missing, so the load was not the planned one. Find what is missing and merge again, or run again."
        return Check("parts", "fail", len(missing), 0, bad)
    if broken := [part for part in merged.parts if part.interrupted or part.errors]:
        bad = f"{_numbers([part.number for part in broken])} of {merged.of} did not run to the end ({_where(broken[0])}). The records were kept, but the load was not the planned one: run again."
        return Check("parts", "fail", len(broken), 0, bad)
    starts = [part.t0_wall_ns for part in merged.parts]
    apart = (max(starts) - min(starts)) / NS
    together = f"{len(merged.parts)} of {merged.of} parts; by their own clocks, which were not compared, they started within {format_seconds(apart)}"
    if apart <= TOGETHER:
        return Check("parts", "pass", 0, 0, together)
    bad = f"{together}: at the beginning and the end, the load was lower than planned. Give all parts the same --start-at, and keep the clocks of their machines synchronized."
    return Check("parts", "warn", apart, TOGETHER, bad)


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (" ..." if len(numbers) > 8 else "")
    return f"Part {shown}" if len(numbers) == 1 else f"Parts {shown}"


def _where(part: MergedPart) -> str:
    why = part.errors[0] if part.errors else "it was interrupted"
    return f"part {part.number} on {part.host.get('name', 'an unnamed machine')}: {why.rstrip('.')}"
