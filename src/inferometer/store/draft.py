"""The manifest as far as it is known at the start of a run, so that a run which does not end can still be read.

The draft is locked while its run lasts, so that nobody takes the spool apart meanwhile; and it has room to spare, so that
the run's end can be written into it in place, on a full disk too.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO

import msgspec

from inferometer.errors import UserError
from inferometer.records import Manifest

_ROOM = 16_384


class Draft(msgspec.Struct):
    manifest: Manifest
    shards: int


def begin(path: Path, draft: Draft) -> IO[bytes]:
    """Write it; the lock lasts as long as the file that is returned is open."""
    file = path.open("w+b", buffering=0)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX)
    file.write(msgspec.json.encode(draft) + b" " * _ROOM)
    return file


def end(file: IO[bytes], draft: Draft) -> None:
    """How the run ended, over what was known before."""
    data = msgspec.json.encode(draft)
    room = os.fstat(file.fileno()).st_size
    if len(data) <= room:
        with contextlib.suppress(OSError):
            file.seek(0)
            file.write(data.ljust(room))


def read(path: Path) -> Draft:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{path.parents[1]}: this run is still under way", "wait for its end, or end it with Ctrl-C"
            ) from None
        except OSError:  # a file system without locks
            pass
        try:
            return msgspec.json.decode(file.read(), type=Draft)
        except msgspec.MsgspecError as error:
            raise UserError(f"{path}: damaged: {error}", "this run cannot be read: run again") from None
