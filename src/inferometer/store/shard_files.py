"""Chunks and texts of single shards in Parquet files of their own: `chunks-00000.parquet` and `bodies-00000.parquet` are those of shard 0.

A run whose shards have stored them in its bucket has these files instead of chunks.parquet and bodies.parquet. Together, in the order
of the shards, they are the same.
"""

from collections.abc import Sequence
from pathlib import Path

from inferometer.store import bodies, body_spool
from inferometer.store.folder import BODIES, CHUNKS, atomic_file, shard_file
from inferometer.store.spool import pieces
from inferometer.store.writing import write_chunks


def write_shard_files(spool: Path, shard: int, folder: Path, classes: Sequence[str]) -> list[Path]:
    """Write what a shard has in its spool, with times since t=0. `classes` are the names of the traffic classes."""
    folder = folder.absolute()
    written = [folder / shard_file(CHUNKS, shard)]
    with atomic_file(written[0]) as partial:
        write_chunks(partial, pieces(spool, [shard]))
    if body_spool.has_bodies(spool, [shard]):
        written.append(folder / shard_file(BODIES, shard))
        with atomic_file(written[1]) as partial:
            bodies.write(partial, body_spool.read_bodies(spool, [shard]), classes)
    return written
