"""A run's folder on disk: its name, files that are either complete or absent, and disk errors as UserErrors."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from inferometer.errors import ANOTHER_FOLDER, UserError
from inferometer.replacing import replaced

MANIFEST = "manifest.json"
REQUESTS = "requests.parquet"
CHUNKS = "chunks.parquet"
SAMPLES = "samples.parquet"
SERIES = "series.parquet"
BODIES = "bodies.parquet"
SUMMARY = "summary.json"
RUNS = "runs.json"
"""In the folder of an experiment: its runs (conduct/experiment.py)."""
CAPACITY = "capacity.json"
CAMPAIGN = "campaign.json"
LISTS = {CAMPAIGN: "engines", CAPACITY: "capacity", "sweep.json": "sweep", "pairs.json": "ab"}
"""Files that say what several runs are, beside runs.json, and the kind; the last two are from before runs.json."""
LATEST = "LATEST"


def new_folder(base: str | Path, stem: str = "") -> Path:
    """Make a new folder for a run under `base`, such as `runs/20260930-142501-3f9c`. A base that cannot be written fails here.

    `stem` is what its name starts with; by default, it is the current time.
    """
    if "://" in str(base):
        raise UserError(f"{base}: this command stores its runs in a folder, not in a bucket", ANOTHER_FOLDER)
    with disk_errors(Path(base)):
        Path(base).mkdir(parents=True, exist_ok=True)
        while True:
            folder = Path(base) / f"{stem or f'{datetime.now():%Y%m%d-%H%M%S}'}-{secrets.token_hex(2)}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder


def point_latest(folder: Path) -> None:
    """Make the link `LATEST` beside the folder point to it. On file systems without links there is no LATEST."""
    link, fresh = folder.parent / LATEST, folder.parent / f".{LATEST}.{os.getpid()}"
    if link.exists() and not link.is_symlink():
        return
    with contextlib.suppress(OSError, NotImplementedError):
        fresh.symlink_to(folder.name, target_is_directory=True)
        fresh.replace(link)


def write_summary(folder: Path, data: bytes) -> None:
    """Write summary.json."""
    with atomic_file(folder / SUMMARY) as partial:
        partial.write_bytes(data)


def shard_file(name: str, shard: int) -> str:
    """Return what the file of one shard is called, for chunks.parquet and bodies.parquet (shard_files.py). In the order of the names, as
    a glob lists them, the files are in the order of the shards."""
    return f"{name.removesuffix('.parquet')}-{shard:05}.parquet"


def files_of(folder: Path, name: str) -> list[Path]:
    """Return the files that together have the content of chunks.parquet or bodies.parquet: that file, or one per shard; or none."""
    if (folder / name).exists():
        return [folder / name]
    stem = f"{name.removesuffix('.parquet')}-"
    found = [path for path in folder.glob(f"{stem}*.parquet") if path.stem.removeprefix(stem).isdecimal()]
    return sorted(found, key=lambda path: int(path.stem.removeprefix(stem)))


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Replace a file of a run (`replaced`). Raises UserError when the disk refuses."""
    with disk_errors(path.parent), replaced(path) as partial:
        yield partial


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a UserError that says what the disk refused at `path` and what to do next."""
    try:
        yield
    except OSError as error:
        number = error.errno or _errno_within(error)
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{path}: the disk is full", f"free some space, or {ANOTHER_FOLDER}") from None
        if number in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(f"{path}: no permission to write there", ANOTHER_FOLDER) from None
        if number in (errno.ENOTDIR, errno.EEXIST):
            raise UserError(f"{path}: not a folder", ANOTHER_FOLDER) from None
        if number == errno.EFBIG:
            raise UserError(f"{path}: a file is too large", "raise the limit on its size (ulimit -f)") from None
        raise UserError(f"{path}: {error.strerror or error}", ANOTHER_FOLDER) from None


def _errno_within(error: OSError) -> int:
    """Find the error number in Arrow's messages, which may be the only source of it: `[Errno 28] ...`."""
    return next((n for n in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) if f"rrno {n}]" in str(error)), 0)
