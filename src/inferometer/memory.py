"""How much memory there is, and what to say where it was not enough.

A container, or any other control group, may have less than its machine. Its limit is in a file: memory.max where groups are
one tree, memory.limit_in_bytes where each controller has its own (versions 2 and 1). A group has no more than those above it;
within a container its own files may lie at the root, under another path than the kernel calls it by.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from inferometer.errors import UserError

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def limit() -> int:
    """Bytes that this process may have at most."""
    return min([_machine(), *_of_groups(_OWN, _GROUPS)])


@contextlib.contextmanager
def enough_for(what: str) -> Iterator[None]:
    """That there was not is something that users can mend."""
    try:
        yield
    except MemoryError:
        raise UserError(
            f"{what}: there is not enough memory", "take a smaller shape, or a smaller batch, or free some memory"
        ) from None


def _machine() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_groups(own: Path, root: Path) -> list[int]:
    """The limits of the groups that this process is in, from the innermost out; none where there are no such things."""
    files = (
        folder / str(path).lstrip("/") / name
        for folder, name, group in _memory_groups(own, root)
        for path in (group, *group.parents)
    )
    found = map(_number, files)
    return [number for number in found if number is not None]


def _memory_groups(own: Path, root: Path) -> Iterator[tuple[Path, str, PurePosixPath]]:
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


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # there is none, or it says max
        return None
