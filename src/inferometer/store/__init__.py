"""Runs on disk: a folder of manifest.json, Parquet files (requests, chunks, samples, series, and bodies on request) and summary.json.

The manifest is written after the Parquet files, so a folder that has one is complete. summary.json can always be made again.
What this needs, such as pyarrow, is imported when it is used: client processes, which only write a spool, do without it.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.records import Body, Chunks, Manifest, Records, Run

if TYPE_CHECKING:
    from inferometer.series import TimeSeries
    from inferometer.store.folder import new_folder, point_latest, write_summary

__all__ = ["bodies_of", "new_folder", "point_latest", "read", "write", "write_summary", "written"]


def read(folder: str | Path) -> Run:
    """Read the run in `folder`, which may be a link to it such as runs/LATEST. Raises UserError when it is not a run."""
    from inferometer.store import reading  # noqa: PLC0415

    return reading.read(folder)


def written(folder: Path, records: Records) -> Run:
    """The run that was just written to `folder`: equal to what `read` returns, without reading all rows again."""
    from inferometer.store import reading  # noqa: PLC0415

    return reading.written(folder, records)


def write(
    folder: Path,
    manifest: Manifest,
    records: Records,
    chunks: Iterable[Chunks] | None,
    series: "Sequence[TimeSeries]" = (),
    bodies: Iterable[Body] | None = None,
) -> None:
    """Write the run's files, the manifest last. `chunks` and `bodies`: None if they are there already, in files of the shards
    (shard_files.py). The texts of requests and responses are None, too, if they were not kept."""
    from inferometer.store import writing  # noqa: PLC0415

    writing.write(folder, manifest, records, chunks, series, bodies)


def bodies_of(folder: Path, ids: Collection[int]) -> dict[int, Body]:
    """Read the texts of these requests, by id; empty if the run did not keep them (`keep: text`)."""
    from inferometer.store.folder import BODIES, files_of  # noqa: PLC0415

    files = files_of(folder, BODIES)
    if not files:
        return {}
    from inferometer.store import bodies  # noqa: PLC0415

    return {id: body for path in files for id, body in bodies.read(path, ids).items()}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from inferometer.store import folder  # noqa: PLC0415

    return getattr(folder, name)
