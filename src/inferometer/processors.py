"""How many processors this process may use: those of its affinity, or what its control group allows if that is less."""

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable(quota: Path = _QUOTA) -> float:
    """Return the number of processors; a control group may allow a fraction of one."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        limit, period = quota.read_text().split()
        return min(count, int(limit) / int(period))
    except (OSError, ValueError):  # there is no limit, which is the word `max`
        return count
