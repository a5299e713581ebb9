"""Datasets of the Hugging Face hub. Their first rows are streamed once and kept in a file, which all processes read.

The file's name contains the commit of the dataset, so that the same config gives the same rows later, with or without a network.
"""

import os
import re
import tempfile
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from inferometer.config.data.datasets import Hub
from inferometer.errors import UserError

_REMEDY = "check the name, data.subset, data.split and data.revision, and the network; or download it and use data.type: parquet"


def pinned(spec: Hub) -> Hub:
    """The same spec with the commit instead of a branch, a tag or nothing; and with its rows on this machine."""
    if Path(spec.path).expanduser().exists():
        return spec
    if spec.revision is None or not re.fullmatch("[0-9a-f]{40}", spec.revision):
        _library(spec)
        spec = msgspec.structs.replace(spec, revision=_commit(spec))
    rows_file(spec)
    return spec


def rows_file(spec: Hub) -> Path:
    """The file with the rows, as JSON lines; downloads them if necessary."""
    local = Path(spec.path).expanduser()
    stamp = str(max((file.stat().st_mtime_ns for file in local.rglob("*")), default=0)) if local.exists() else ""
    key = msgspec.json.encode([spec.path, spec.subset, spec.split, spec.revision, spec.rows, stamp])
    name = re.sub(r"[^\w.-]+", "_", spec.path)[-60:]
    file = _cache() / f"{name}-{sha256(key).hexdigest()[:16]}.jsonl"
    if not file.exists():
        _download(spec, file)
    return file


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "inferometer" / "hub"


def _library(spec: Hub) -> Any:
    try:
        import datasets  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise UserError(
            f"the dataset {spec.path} needs the library `datasets`", "pip install 'inferometer[hub]'", "data.type"
        ) from None
    return datasets


def _commit(spec: Hub) -> str:
    from huggingface_hub import HfApi  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - comes with datasets

    try:
        return str(HfApi().dataset_info(spec.path, revision=spec.revision).sha)
    except Exception as error:  # the library raises its own errors, those of its HTTP client, and ValueError
        raise _failed(spec, error) from None


def _download(spec: Hub, file: Path) -> None:
    library = _library(spec)
    try:
        stream = library.load_dataset(spec.path, spec.subset, split=spec.split, revision=spec.revision, streaming=True)
        rows = [msgspec.json.encode(row, enc_hook=_shown) for row in islice(stream, spec.rows)]
    except Exception as error:
        raise _failed(spec, error) from None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(descriptor, "wb") as written:
            written.writelines(row + b"\n" for row in rows)
        Path(temporary).replace(file)  # another process may write the same at the same time
    except OSError as error:
        raise UserError(
            f"{file.parent} cannot be written: {error.strerror}", "set XDG_CACHE_HOME to a folder with room"
        ) from None


def _shown(value: object) -> str:
    """What stands for a value that is not text, such as an image."""
    return f"<{type(value).__name__}>"


def _failed(spec: Hub, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    return UserError(
        f"the dataset {spec.path} cannot be loaded: {type(error).__name__}: {reason}", _REMEDY, "data.path"
    )
