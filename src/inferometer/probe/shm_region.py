"""One region of system shared memory: a file under /dev/shm that tensors are appended to.

The file is written and allocated, never mapped: if memory runs out, that is an error here and not a SIGBUS in the server. The
process that created it holds a lock on it, so that a region without a lock is known to be left behind (`sweep`).
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from inferometer.errors import UserError
from inferometer.units import format_bytes
from inferometer.wire.context import ShmRef

PREFIX = "inferometer-"
FOLDER = Path("/dev/shm")

_ALIGNED = 64


class Region:
    """A file in shared memory to which tensors are appended."""

    def __init__(self) -> None:
        self.name = _new_name()
        self.size = 0
        self._file = -1
        self._known: dict[bytes, ShmRef] = {}

    @property
    def path(self) -> Path:
        return FOLDER / self.name

    def create(self) -> None:
        self._open()
        while not os.fstat(self._file).st_nlink:  # another run removed it before it was locked
            os.close(self._file)
            self.name = _new_name()
            self._open()

    def _open(self) -> None:
        with _room_needed(0):
            self._file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def put(self, data: bytes | memoryview) -> ShmRef:
        """Append these bytes, unless the region has them already; return where they are."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._known[digest] = self._next(len(data))
            with _room_needed(self.size):
                _write(self._file, data, known.offset)
        return known

    def reserve(self, size: int) -> int:
        """Reserve bytes that the server may write to; return their offset."""
        ref = self._next(size)
        if size:
            with _room_needed(self.size):
                os.posix_fallocate(self._file, ref.offset, size)
        return ref.offset

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _next(self, size: int) -> ShmRef:
        offset = aligned(self.size)
        self.size = offset + size
        return ShmRef(self.name, size, offset)


def _new_name() -> str:
    return f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"


def aligned(size: int) -> int:
    """Round up to the alignment of tensors."""
    return -(-size // _ALIGNED) * _ALIGNED


def _write(file: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(file, rest, offset)
        rest, offset = rest[count:], offset + count


@contextlib.contextmanager
def _room_needed(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        needed = f" ({format_bytes(size)} of tensors are needed)" if size else ""
        raise UserError(
            f"{FOLDER}: {error.strerror or error}{needed}",
            "make it larger (mount -o remount,size=..., docker --shm-size), use smaller tensors, or lower the concurrency",
        ) from None


def sweep() -> None:
    """Remove the regions of runs that were killed."""
    for path in FOLDER.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # already gone, in use (its lock is held), or another user's
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)
