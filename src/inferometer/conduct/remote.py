"""Stored runs in buckets: their files are copied to a cache on this machine, and read from there.

A file in the cache is used again if the object still has its size; everything else is fetched. `LATEST` at the end of a URL is the
run that the object `LATEST` names, or the newest name if there is no such object.
"""

import fnmatch
import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from inferometer.config.storage import is_remote, split_url
from inferometer.errors import UserError, named
from inferometer.store.folder import LATEST, MANIFEST
from inferometer.store.objects import ObjectStore, connect

_NAMES = {"output": "the URL", "storage.endpoint": "the endpoint", "storage.timeout": "30s"}


def local_names(names: Iterable[str]) -> tuple[str, ...]:
    """Folders and globs as they are, and instead of URLs the folders in the cache that hold their runs."""
    return tuple(str(each) for name in names for each in (fetched(name) if is_remote(name) else [name]))


def fetched(url: str) -> list[Path]:
    """Copy what is stored at a URL to the cache: a run, or a folder of several; the last part may be a glob, or LATEST."""
    scheme, bucket, prefix = split_url(url)
    base, _, last = prefix.rpartition("/")
    root = "/".join(part for part in (f"{scheme}://{bucket}", base) if part)
    with named(_NAMES), connect(root, None) as objects:
        if not glob.has_magic(last) and last != LATEST:
            return [_fetch(objects, last, objects.sizes(last), url)]
        sizes = objects.sizes()
        folders = folders_in(sizes)
        if last == LATEST:
            chosen = [_latest(objects, sizes, url)]
        else:
            chosen = [name for name in sorted(folders) if fnmatch.fnmatchcase(name, last)]
        if not chosen:
            raise UserError(f"{url}: no run matches", f"list what is there with `inferometer runs {root}`")
        return [_fetch(objects, name, folders.get(name, {}), url) for name in chosen]


def folders_in(sizes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The objects of each folder at the top, by its name; names stay as they are."""
    folders: dict[str, dict[str, int]] = {}
    for name, size in sizes.items():
        if "/" in name:
            folders.setdefault(name.partition("/")[0], {})[name] = size
    return folders


def _latest(objects: ObjectStore, sizes: Mapping[str, int], url: str) -> str:
    if LATEST in sizes:
        path = cache_folder(objects) / LATEST
        objects.fetch(LATEST, path)
        name = path.read_text("utf-8", errors="replace").strip()
        if "/" not in name and any(each.startswith(f"{name}/") for each in sizes):
            return name
    runs = sorted(name.partition("/")[0] for name in sizes if name.endswith(f"/{MANIFEST}"))
    if not runs:
        raise UserError(f"{url}: there is no run", "measure one with `inferometer run`, or check the URL")
    return runs[-1]


def _fetch(objects: ObjectStore, name: str, sizes: Mapping[str, int], url: str) -> Path:
    folder = cache_folder(objects) / name
    start = f"{name}/" if name else ""
    own = {each.removeprefix(start) for each in sizes}
    if not own:
        raise UserError(f"{url}: there is nothing stored", f"list what is there with `inferometer runs {objects.url}`")
    if MANIFEST not in own and any("/" not in each and each.endswith(".parquet") for each in own):
        raise UserError(
            f"{url}: the upload of this run is not complete",
            "upload the rest with `inferometer runs push FOLDER` on the machine that measured it",
        )
    fetch_new(objects, sizes, lambda each: True)
    return folder


def fetch_new(objects: ObjectStore, sizes: Mapping[str, int], wanted: Callable[[str], bool]) -> None:
    """Copy those of the objects that are wanted and that the cache does not have yet."""
    cache = cache_folder(objects)
    missing = {
        name: cache / name
        for name, size in sizes.items()
        if is_safe(name) and wanted(name) and not _is_cached(cache / name, size)
    }
    objects.fetch_all(missing)


def is_safe(name: str) -> bool:
    """Whether an object can be a file of the cache; names such as `a/../b` and hidden ones are left out."""
    return all(part and not part.startswith(".") for part in name.split("/")) and PurePosixPath(name).name != LATEST


def _is_cached(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def cache_folder(objects: ObjectStore) -> Path:
    """Where the cache keeps the objects under the store's URL."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    scheme, _, path = objects.url.partition("://")
    bucket, _, prefix = path.partition("/")
    which = hashlib.sha256(objects.endpoint.encode()).hexdigest()[:8] if objects.endpoint else "default"
    return base / "inferometer" / "buckets" / f"{scheme}-{which}" / bucket / prefix
