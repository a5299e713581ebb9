"""Runs a command and ends everything that it started, whatever happens to the process that wanted it.

A script of its own, with the standard library only: `python keeper.py GRACE COMMAND...`. It starts the command in a session of its own and
waits. When its standard input is closed, by the parent or because the parent was killed, it sends SIGTERM to all descendants of
the command, and SIGKILL to those that are left after GRACE seconds. It ends with the command's status.

On Linux it makes itself the reaper of orphans: processes that leave the command's group, or whose parent has ended, remain its
descendants and are found in /proc.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LOOK = 0.05


def main() -> int:
    grace, command = float(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    _become_reaper()
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    while process.poll() is None and not _is_closed(0, _LOOK):
        pass
    status = process.poll()
    _end_all(process.pid, grace)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
    ended = process.returncode if status is None else status
    return 128 - ended if ended is not None and ended < 0 else ended or 0


def _become_reaper() -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _is_closed(descriptor: int, seconds: float) -> bool:
    readable, _, _ = select.select([descriptor], [], [], seconds)
    return bool(readable) and not os.read(descriptor, 4096)


def _end_all(leader: int, grace: float) -> None:
    deadline = time.monotonic() + grace
    _signal(leader, signal.SIGTERM)
    while _remaining(leader) and time.monotonic() < deadline:
        time.sleep(_LOOK)
    for _ in range(100):  # a process may start another one while they are killed
        if not _remaining(leader):
            return
        _signal(leader, signal.SIGKILL)
        time.sleep(_LOOK)


def _signal(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in _descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _remaining(leader: int) -> bool:
    """Whether a process of the command's group, or another descendant, still runs. Those that have ended are reaped."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if _descendants():
        return True
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _descendants() -> list[int]:
    """The processes below this one that still run; empty on systems without /proc."""
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, parent = file.read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(file.parent.name))
    found, fresh = [], [os.getpid()]
    while fresh:
        fresh = [child for parent in fresh for child in children.get(parent, ())]
        found += fresh
    return found


if __name__ == "__main__":
    sys.exit(main())
