"""Where inference-perf's report files go: a local folder, Google Cloud Storage, S3 and its look-alikes."""

import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from inferometer.compat.inference_perf.logging import Log
from inferometer.compat.inference_perf.reports.per_request import Content
from inferometer.compat.inference_perf.spec import Spec
from inferometer.errors import UserError
from inferometer.replacing import replaced
from inferometer.store.folder import disk_errors

OWN_FOLDER = "inferometer"
"""The folder of our own runs, below the report files. llm-d-benchmark moves only files, so it stays where it is."""


class _Objects(Protocol):
    """What is used of an object store (store/objects.py)."""

    def check_writable(self) -> None: ...
    def put(self, name: str, content: bytes | Path) -> None: ...
    def names(self, prefix: str = "") -> Any: ...
    def close(self) -> None: ...


class Destinations:
    """Where a config stores its reports. Making one checks that all of them can be written, before the first request."""

    def __init__(self, spec: Spec) -> None:
        storage = spec["storage"] or {}
        self._sections = {name: section for name, section in storage.items() if section is not None}
        local = self._sections.get("local_storage")
        self.folder = Path(local["path"]) if local is not None else None
        if self.folder is not None:
            with _named("storage.local_storage.path"):
                _check_folder(self.folder)
        self._stores = {}
        for name in ("google_cloud_storage", "simple_storage_service"):
            if name in self._sections:
                with _named(f"storage.{name}"):
                    self._stores[name] = connect(name, self._sections[name])
                    self._stores[name].check_writable()

    @property
    def own_folder(self) -> str:
        """Where our own runs are stored."""
        return str(self.folder / OWN_FOLDER) if self.folder is not None else "runs"

    def write(self, files: Mapping[str, Content], log: Log) -> None:
        """Write the files to all destinations. Raises UserError when one of them failed, after all were tried."""
        failures = []
        for write in (self._write_local, self._write_objects):
            try:
                write(files, log)
            except UserError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _write_local(self, files: Mapping[str, Content], log: Log) -> None:
        if self.folder is None:
            return
        prefix = self._sections["local_storage"]["report_file_prefix"] or ""
        with disk_errors(self.folder):
            for name, content in files.items():
                with replaced(self.folder / f"{prefix}{name}") as partial, partial.open("wb") as file:
                    file.writelines([content] if isinstance(content, bytes) else content)
        log.info(f"Report files saved to: {self.folder} ({len(files)} files)")

    def _write_objects(self, files: Mapping[str, Content], log: Log) -> None:
        for section, store in self._stores.items():
            prefix = self._sections[section]["report_file_prefix"] or ""
            taken = set(store.names(""))
            for name, content in files.items():
                if f"{prefix}{name}" in taken:
                    log.warning(f"{prefix}{name} exists in the bucket already, and is left as it is")
                    continue
                if isinstance(content, bytes):
                    store.put(f"{prefix}{name}", _as_json(content) if name == "config.yaml" else content)
                    continue
                with tempfile.NamedTemporaryFile() as file:
                    file.writelines(content)
                    file.flush()
                    store.put(f"{prefix}{name}", Path(file.name))
            log.info(f"Report files saved to: {url_of(section, self._sections[section])} ({len(files)} files)")

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def url_of(section: str, settings: Mapping[str, Any]) -> str:
    """The URL of a bucket and a path in it."""
    scheme = "gs" if section == "google_cloud_storage" else "s3"
    return f"{scheme}://{settings['bucket_name']}/{settings['path'].strip('/')}".rstrip("/")


def connect(section: str, settings: Mapping[str, Any]) -> _Objects:
    """Connect to the object store of a section of `storage`."""
    from inferometer.config.storage import Storage  # noqa: PLC0415 - few configs need it
    from inferometer.store import objects  # noqa: PLC0415

    own = {"endpoint": settings.get("endpoint_url"), "region": settings.get("region_name")}
    style = settings.get("addressing_style")
    if style in ("path", "virtual"):
        own["addressing"] = style
    made: _Objects = objects.connect(
        url_of(section, settings), Storage(**{name: value for name, value in own.items() if value})
    )
    return made


def _check_folder(folder: Path) -> None:
    """Make the folder, and a file in it. Raises UserError when that is not possible."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".inferometer-"):
            pass


@contextlib.contextmanager
def _named(key: str) -> Any:
    try:
        yield
    except UserError as error:
        error.key = error.key or key
        raise


def _as_json(config: bytes) -> bytes:
    """Buckets hold config.yaml as JSON text, as inference-perf stores it."""
    return json.dumps(yaml.safe_load(config), indent=2).encode()
