"""What a server's log says about its start: when each phase was complete, and the facts that the engine prints about itself."""

import re
from collections.abc import Iterable, Sequence

from inferometer.engines.launching import fact_value

Lines = Sequence[tuple[float, str]]
"""Lines of a log, each with the seconds since the start of the process at which it was seen."""


def phases(lines: Lines, milestones: Iterable[tuple[str, str]]) -> dict[str, float]:
    """When each phase was complete: the seconds at which the last line was seen that ends it.

    The last, since an engine with several workers loads the weights once per worker. Phases whose line did not come are left out.
    """
    found = {}
    for name, pattern in milestones:
        search = re.compile(pattern).search
        if seen := [at for at, line in lines if search(line)]:
            found[name] = max(seen)
    return dict(sorted(found.items(), key=lambda phase: phase[1]))


def facts(lines: Lines, fact_lines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The facts of the log, in the words that all engines share: on, off, float32."""
    found = {}
    for name, pattern in fact_lines:
        search = re.compile(pattern).search
        for _, line in lines:
            if match := search(line):
                found[name] = fact_value(match[1].strip())
    return found
