"""Runs whose shards have stored their chunks and texts in the run's bucket: completes the run's folder with them."""

from collections.abc import Sequence
from pathlib import Path

from inferometer.errors import UserError, named
from inferometer.store.folder import BODIES, CHUNKS, shard_file
from inferometer.store.objects import connect
from inferometer.store.shard_files import write_shard_files
from inferometer.store.spool import Control
from inferometer.store.upload import UPLOAD, Upload, push_command, read_upload


def complete(folder: Path, spool: Path, shards: int, classes: Sequence[str]) -> bool:
    """Put the files of all shards into the run's folder, if any of them are in the bucket. Return whether they are.

    They are fetched, because the report is computed from them. What other shards have sent to the parent instead is written beside
    them. Raises UserError when the bucket cannot be read, or the disk is full.
    """
    stored = [shard for shard in range(shards) if Control(spool / f"{shard}.control", create=False)["stored"]]
    if not stored:
        return False
    upload = read_upload(folder)
    if upload is None:
        raise UserError(
            f"{folder / UPLOAD}: the file is missing or damaged, and says where the shards have stored their chunks",
            "copy the run's folder again, or run again",
        )
    with named({"output": "another output", "storage.endpoint": "storage.endpoint"}):
        try:
            _fetch(folder, upload, stored)
            for shard in range(shards):
                if shard not in stored:
                    write_shard_files(spool, shard, folder, classes)
        except (UserError, KeyboardInterrupt) as error:
            why = error.line if isinstance(error, UserError) else f"{upload.url}: interrupted"
            raise UserError(
                f"{why}: the run is measured, but the chunks of its shards could not be collected",
                f"nothing is lost; `inferometer report {folder}` completes the run, and `{push_command(folder)}` uploads it",
            ) from None
    return True


def _fetch(folder: Path, upload: Upload, shards: Sequence[int]) -> None:
    """Fetch the files of these shards, unless they are there already."""
    with connect(upload.url, upload.storage) as objects:
        sizes = objects.sizes(folder.name)
        wanted: dict[str, Path] = {}
        for shard in shards:
            for table in (CHUNKS, BODIES):
                path = folder / shard_file(table, shard)
                name = f"{folder.name}/{path.name}"
                is_there = path.exists() and path.stat().st_size == sizes.get(name)
                if (table == CHUNKS or name in sizes) and not is_there:
                    wanted[name] = path
        objects.fetch_all(wanted)
