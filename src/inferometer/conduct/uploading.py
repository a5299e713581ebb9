"""Runs whose `output` is a bucket: they are measured into a local folder, and uploaded from there.

    config, upload = prepare(config)     before the first request: can the bucket be written to?
    mark(folder, upload)                 as soon as there is a folder: it belongs there
    finish(folder)                       after the measurement: upload it

An upload that fails, or is interrupted, leaves the local folder, and can be repeated with `inferometer runs push`.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from inferometer.config.schema import Config
from inferometer.config.storage import Storage, is_remote
from inferometer.errors import UserError, named
from inferometer.store.folder import disk_errors
from inferometer.store.objects import connect
from inferometer.store.upload import UPLOAD, Upload, check_is_run, push, push_command, read_upload, write_upload


def prepare(config: Config) -> tuple[Config, Upload | None]:
    """The config with a local output, and where its folder belongs; None if the output is local anyway.

    Raises UserError, within `storage.timeout`, when the bucket or the local folder cannot be written to.
    """
    if not is_remote(config.output):
        return config, None
    upload = upload_to(config.output, config.storage)
    return msgspec.structs.replace(config, output=config.storage.local), upload


def upload_to(url: str, storage: Storage) -> Upload:
    """Where a run that is uploaded to this URL belongs. Raises UserError when the bucket or the local folder cannot be written to."""
    with connect(url, storage) as objects:
        objects.check_writable()
        upload = Upload(objects.url, storage)
    _check_local(Path(storage.local))
    return upload


def _check_local(folder: Path) -> None:
    """Raise UserError when nothing can be written to the folder: in a container, most of the file system may be read-only."""
    try:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except UserError as error:
        remedy = "give a folder that can be written; in a container, one on a volume"
        raise UserError(error.what, remedy, "storage.local") from None


def mark(folder: Path, upload: Upload | None) -> None:
    """Record where a new folder belongs, so that it can be uploaded even if this process is killed."""
    if upload is not None:
        write_upload(folder, upload)


def discard_if_unused(folder: Path) -> None:
    """Remove a folder in which nothing was stored but where it belongs."""
    if all(path.name == UPLOAD for path in folder.iterdir()):
        shutil.rmtree(folder)


def finish(folder: Path, note: Callable[[str], None] | None = None) -> str | None:
    """Upload a folder that belongs elsewhere and is not there yet; return its URL, or None if it belongs nowhere else."""
    upload = read_upload(folder)
    if upload is None:
        return None
    if upload.complete:
        return f"{upload.url}/{folder.resolve().name}"
    return push_folder(folder, upload, note)


def push_again(folder: Path, url: str | None, note: Callable[[str], None] | None = None) -> str:
    """Upload a stored folder to `url`, or to where it belongs; return its URL."""
    check_is_run(folder)
    known = read_upload(folder)
    if known is None and url is None:
        raise UserError(f"{folder}: this run belongs to no bucket yet", "add a URL, such as s3://BUCKET/PREFIX")
    upload = known if known is not None and url in (None, known.url) else Upload(url or "")
    return push_folder(folder.resolve(), upload, note)


def push_folder(folder: Path, upload: Upload, note: Callable[[str], None] | None = None) -> str:
    """Upload a folder. An error, and Ctrl-C, say how to repeat it."""
    with named({"output": "another output", "storage.endpoint": "storage.endpoint"}):
        try:
            return push(folder, upload, note)
        except UserError as error:
            raise UserError(
                f"{error.line}: the upload of {folder} is not complete",
                f"nothing is lost; when the cause is fixed, `{push_command(folder)}` uploads the rest",
            ) from None
        except KeyboardInterrupt:
            raise UserError(
                f"the upload of {folder} to {upload.url} was interrupted",
                f"nothing is lost; `{push_command(folder)}` uploads the rest",
            ) from None
