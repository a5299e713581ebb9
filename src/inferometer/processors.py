"""How many processors this process may use: those of its affinity, or what its control group allows if that is less."""

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")

ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""The environment in which importing numpy starts no threads for linear algebra, of which clients and reports make no use. There would
be one per processor, and each spins at first (40 ms of CPU with two processors)."""


def usable(quota: Path = _QUOTA) -> float:
    """Return the number of processors; a control group may allow a fraction of one."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        limit, period = quota.read_text().split()
        return min(count, int(limit) / int(period))
    except (OSError, ValueError):  # there is no limit, which is the word `max`
        return count
