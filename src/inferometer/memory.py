"""How much memory the process may use, and the error message when it is not enough.

A container, or any other control group, may have less memory than its machine. Its limit is in a file: memory.max in
version 2, where all groups are one tree, and memory.limit_in_bytes in version 1, where each controller has its own tree. The
limits of a group's parents apply to it too. Inside a container, the group's files may be at the root instead of under the
path that /proc/self/cgroup names.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from inferometer.errors import UserError

_GROUPS_ROOT = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def limit() -> int:
    """Maximum number of bytes that this process may use."""
    return min([_machine(), *_group_limits(_OWN_GROUPS, _GROUPS_ROOT)])


@contextlib.contextmanager
def enough_for(what: str) -> Iterator[None]:
    """Turn a lack of memory into a UserError about `what`."""
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise UserError(
            f"{what}: there is not enough memory", "use fewer or smaller requests, or free some memory"
        ) from None


def _machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_limits(own: Path, root: Path) -> list[int]:
    """The limits of the control groups that this process is in, innermost first; empty if there are none."""
    files = (
        folder / str(path).lstrip("/") / name
        for folder, name, group in _memory_groups(own, root)
        for path in (group, *group.parents)
    )
    return [limit for file in files if (limit := _read_limit(file)) is not None]


def _memory_groups(own: Path, root: Path) -> Iterator[tuple[Path, str, PurePosixPath]]:
    """(root of the tree, name of the file with the limit, path of the group) for each of the process's memory groups."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield root, "memory.max", PurePosixPath(group)
        elif "memory" in controllers.split(","):
            yield root / "memory", "memory.limit_in_bytes", PurePosixPath(group)


def _read_limit(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file, or it contains "max"
        return None
