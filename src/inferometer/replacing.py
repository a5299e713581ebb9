"""Writes files beside their final path: a file is either complete, or as it was before."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. The file gets its real name once all of it is on disk; on errors it is removed.

    Pipes and devices, such as /dev/stdout, are written directly.
    """
    if path.exists() and (not path.is_file() or path.is_relative_to("/dev")):
        yield path
        return
    path = Path(os.path.realpath(path))
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, partial)
        try:
            partial.replace(path)
        except OSError:  # a file that is mounted into a container cannot be replaced
            shutil.copyfile(partial, path)
            partial.unlink()
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
