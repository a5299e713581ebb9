"""The manifest as far as it is known at the start of a run, so that a run that does not end can still be read.

The draft is locked while its run is in progress, so that no other process takes the spool apart. It is padded, so that the
end of the run can be written into it in place, even on a full disk.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO

import msgspec

from inferometer.errors import UserError
from inferometer.records import Manifest

_PADDING = 16_384


class Draft(msgspec.Struct):
    manifest: Manifest
    shards: int


def begin(path: Path, draft: Draft) -> IO[bytes]:
    """Write and lock the draft; the lock lasts as long as the returned file is open."""
    file = path.open("w+b", buffering=0)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX)
    file.write(msgspec.json.encode(draft) + b" " * _PADDING)
    return file


def end(file: IO[bytes], draft: Draft) -> None:
    """Overwrite the draft in place with what is known at the end of the run."""
    data = msgspec.json.encode(draft)
    size = os.fstat(file.fileno()).st_size
    if len(data) <= size:
        with contextlib.suppress(OSError):
            file.seek(0)
            file.write(data.ljust(size))


def is_locked(path: Path) -> bool:
    """Whether the run of this draft is still in progress."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it was removed, or the file system has no locks
        pass
    return False


def read(path: Path) -> Draft:
    """Read the draft of a run that did not end. Raises UserError when the run is still in progress."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{path.parents[1]}: this run is still in progress", "wait until it ends, or end it with Ctrl-C"
            ) from None
        except OSError:  # a file system without locks
            pass
        try:
            return msgspec.json.decode(data := file.read(), type=Draft)
        except msgspec.MsgspecError as error:
            reason = (
                f"the file is damaged: {error}" if data else "it is empty: the run was killed before its first request"
            )
            raise UserError(f"{path}: {reason}", "this run cannot be recovered: run again") from None
