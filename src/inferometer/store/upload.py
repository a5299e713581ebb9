"""Uploads the folder of a run, or of several runs, to an object store; and remembers where a folder belongs.

The files of a run go first and its manifest last, so a run in a bucket that has a manifest is complete. What is already there with
the right size is skipped, so an upload that failed, or whose process was killed, can be repeated and goes on where it ended.
`upload.json` in the local folder says where the folder belongs and whether all of it is there. `LATEST` in the bucket is a small
text object with the name of the run that was uploaded last: buckets have no links.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from inferometer.config.storage import Storage
from inferometer.errors import UserError
from inferometer.store.folder import LATEST, LISTS, MANIFEST, RUNS, atomic_file
from inferometer.store.objects import connect

UPLOAD = "upload.json"
_SPOOL = "spool"
_LISTS = (RUNS, *LISTS)
"""Lists of runs. They are written again and again, so their size does not show whether they are up to date."""

Note = Callable[[str], None]
"""Called with a line of progress."""


class Upload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The layout of upload.json."""

    url: str
    """Under which the folder is stored, by its own name."""
    storage: Storage = msgspec.field(default_factory=Storage)
    complete: bool = False


def read_upload(folder: Path) -> Upload | None:
    """Where the folder belongs; None if it belongs nowhere else, or the file is damaged."""
    try:
        return msgspec.json.decode(
            (folder / UPLOAD).read_bytes(), type=Upload, dec_hook=lambda kind, value: kind(value)
        )
    except (OSError, msgspec.MsgspecError):
        return None


def write_upload(folder: Path, upload: Upload) -> None:
    """Record where the folder belongs."""
    with atomic_file(folder / UPLOAD) as partial:
        partial.write_bytes(msgspec.json.encode(upload, enc_hook=float) + b"\n")


def check_is_run(folder: Path) -> None:
    """Raise UserError for a folder that is neither a run nor a folder of runs, so that no other files are ever uploaded."""
    if any((folder / name).exists() for name in (MANIFEST, *_LISTS, _SPOOL)):
        return
    if any(True for name in _LISTS for _ in folder.glob(f"*/{name}")):
        raise UserError(f"{folder}: there are sweeps, or the like, in this folder", f"give its folders: {folder}/2*")
    if not any(True for _ in folder.glob(f"*/{MANIFEST}")):
        raise UserError(f"{folder}: there is no run in this folder", "give the folder of a run, such as runs/LATEST")


def push(folder: Path, upload: Upload, note: Note | None = None) -> str:
    """Upload a folder, and return its URL. Raises UserError when something could not be uploaded: the folder stays as it is."""
    folder = folder.resolve()
    files = list(_files(folder))
    upload = msgspec.structs.replace(upload, complete=False)
    write_upload(folder, upload)
    with connect(upload.url, upload.storage) as objects:
        present = objects.sizes(folder.name)
        for number, path in enumerate(files, 1):
            name = f"{folder.name}/{path.relative_to(folder).as_posix()}"
            if present.get(name) == path.stat().st_size and path.name not in _LISTS:
                continue
            if note is not None:
                note(f"uploading {name} ({number} of {len(files)}) to {objects.url}")
            objects.put(name, path)
        objects.put(LATEST, f"{folder.name}\n".encode())
        url = f"{objects.url}/{folder.name}"
    write_upload(folder, msgspec.structs.replace(upload, complete=True))
    return url


def _files(folder: Path) -> Iterator[Path]:
    """The files to upload, in order: those of each run in the folder, then those of the folder itself; manifests and lists last."""
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if (inner / MANIFEST).exists():  # a run that did not end is left out: it has no manifest yet
            yield from _own_files(inner)
    if (folder / _SPOOL).exists() and not (folder / MANIFEST).exists():
        raise UserError(
            f"{folder}: the run did not end, so there is nothing complete to upload",
            f"complete it with `inferometer report {folder}`, then upload it",
        )
    yield from _own_files(folder)


def _own_files(folder: Path) -> list[Path]:
    own = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink() and path.name != UPLOAD]
    own = [path for path in own if not path.name.startswith(".")]
    return sorted(own, key=lambda path: (path.name in (*_LISTS, MANIFEST), path.name))


def push_command(folder: Path) -> str:
    """The command that uploads the folder again."""
    return f"inferometer runs push {folder}"
