"""The limit on open files (RLIMIT_NOFILE), and how the client stays within it."""

import contextlib
import math
import sys

from inferometer import processors
from inferometer.errors import UserError

RESERVED_FILES = 16
"""Descriptors that connections leave free: during a run the client needs some for its self-monitoring, the live view and the
server's statistics."""
_OTHER_FILES = 48 + RESERVED_FILES
"""Descriptors that a process needs in addition to its connections: the spool, the event loop, a terminal, and the reserve."""


def file_limit() -> int:
    """Return the number of files that this process may have open."""
    try:
        import resource  # noqa: PLC0415
    except ImportError:
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit in (resource.RLIM_INFINITY, -1) else limit


def raise_file_limit(connections: int) -> None:
    """Raise the limit as far as the system allows. Raises UserError when that is not enough for `connections`."""
    try:
        import resource  # noqa: PLC0415
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):  # macOS reports unlimited but accepts less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = file_limit()
    if connections + _OTHER_FILES > limit:
        processes = math.ceil(connections / max(limit - _OTHER_FILES, 1))
        more = f"set client.processes to {processes}, " if processes <= processors.usable() else ""
        raise UserError(
            f"{connections} connections need more open files than the limit of {limit} (RLIMIT_NOFILE)",
            f"raise it (ulimit -Hn, limits.conf), {more}or lower the concurrency (open loop: client.connections)",
        )
