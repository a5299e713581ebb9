"""The run's folder on disk: its name, files that are either whole or not there, and the disk's errors in plain words."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from inferometer.errors import ANOTHER_FOLDER, UserError

MANIFEST = "manifest.json"
REQUESTS = "requests.parquet"
CHUNKS = "chunks.parquet"
SAMPLES = "samples.parquet"
SUMMARY = "summary.json"
LATEST = "LATEST"


def new_folder(base: str | Path) -> Path:
    """A folder of its own for a run under `base`: `runs/20260930-142501-3f9c`. Made at once, so that a bad place shows early."""
    with disk_errors(Path(base)):
        Path(base).mkdir(parents=True, exist_ok=True)
        while True:
            folder = Path(base) / f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder


def point_latest(folder: Path) -> None:
    """Have `LATEST`, beside the folder, name it. A convenience: where links cannot be made, there is none."""
    link, fresh = folder.parent / LATEST, folder.parent / f".{LATEST}.{os.getpid()}"
    if link.exists() and not link.is_symlink():
        return
    with contextlib.suppress(OSError, NotImplementedError):
        fresh.symlink_to(folder.name, target_is_directory=True)
        fresh.replace(link)


def write_summary(folder: Path, data: bytes) -> None:
    with whole(folder / SUMMARY) as partial:
        partial.write_bytes(data)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary name to write to; the file takes its real name when all of it is on the disk, and else leaves nothing."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with disk_errors(path.parent):
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """What the disk may answer, said in one line with the next thing to do."""
    try:
        yield
    except OSError as error:
        number = error.errno or _errno_within(error)
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{place}: the disk is full", f"free some space, or {ANOTHER_FOLDER}") from None
        if number in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(f"{place}: no permission to write there", ANOTHER_FOLDER) from None
        if number in (errno.ENOTDIR, errno.EEXIST):
            raise UserError(f"{place}: not a folder", ANOTHER_FOLDER) from None
        raise UserError(f"{place}: {error.strerror or error}", ANOTHER_FOLDER) from None


def _errno_within(error: OSError) -> int:
    """Arrow may give the number in its text only: `[Errno 28] ...`."""
    return next((n for n in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) if f"rrno {n}]" in str(error)), 0)
