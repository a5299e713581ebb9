"""Shards on other machines that store their chunks and texts in the run's bucket themselves, instead of sending them to the parent.

The credentials are the parent's: its environment variables, and the contents of the files that they name. They travel with the job, as
an argument of a call (ray_shard.py). They are in the environment of the process that talks to the store and, while it does, in files that
only its user can read.
"""

import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from inferometer.config.storage import Storage, split_url
from inferometer.errors import UserError
from inferometer.fleet.control import Outcome, ShardReport
from inferometer.store.objects import connect
from inferometer.store.shard_files import write_shard_files

_PREFIXES = {"s3": ("AWS_",), "gs": ("GOOGLE_", "STORAGE_EMULATOR_HOST")}
"""Variables that the clients of the stores read."""
_FILES = {
    "s3": {
        "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
        "AWS_CONFIG_FILE": "~/.aws/config",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "",
    },
    "gs": {"GOOGLE_APPLICATION_CREDENTIALS": "~/.config/gcloud/application_default_credentials.json"},
}
"""Variables that name a file with credentials, and the file if they are not set."""
_IDENTITY = {
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
}
"""Variables that say who the client is. If the parent has any, those of the node are left out: a store refuses a mix."""


class Destination(msgspec.Struct, frozen=True):
    """The run's folder in a bucket, and what a machine needs to write there."""

    url: str
    storage: Storage
    environment: dict[str, str]
    files: dict[str, bytes]
    """Contents of files, by the variable that names them."""
    classes: tuple[str, ...] = ()
    """Names of the traffic classes."""

    def __repr__(self) -> str:
        return f"Destination({self.url!r})"  # without the credentials


def destination(url: str, storage: Storage, classes: Sequence[str], environment: Mapping[str, str]) -> Destination:
    """Return what a shard needs to store its records at the URL as this process would, with its `environment`."""
    scheme, _, _ = split_url(url)
    variables = {name: value for name, value in environment.items() if name.startswith(_PREFIXES[scheme])}
    files: dict[str, bytes] = {}
    for name, usual in _FILES[scheme].items():
        path = Path(environment.get(name) or usual).expanduser()
        if path.is_file() and os.access(path, os.R_OK):
            files[name] = path.read_bytes()
    return Destination(url, storage, variables, files, tuple(classes))


class ShardStoring:
    """Stores what a shard has recorded, in a thread of its own, so that polls are responded to meanwhile."""

    def __init__(self, spool: Path, shard: int, to: Destination) -> None:
        self._spool, self._shard, self._to = spool, shard, to
        self._thread = threading.Thread(target=self._store, daemon=True)
        self._failure = ""
        self.allowed = threading.Event()
        """Set when all shards have ended: it takes CPU time and bandwidth, which would disturb those that are still sending."""
        self.is_stored = False

    def has_ended(self, wait: float, stop: int) -> bool:
        """Start it when it is allowed. Return whether it has ended after at most `wait` seconds, or a user who has stopped the run for
        the second time does not want to wait."""
        if self.allowed.wait(wait):
            if self._thread.ident is None:
                self._thread.start()
            self._thread.join(wait)
            if not self._thread.is_alive():
                return True
        if stop >= 2:
            self._failure = self._failure or "interrupted"
        return stop >= 2

    def noted(self, outcome: Outcome) -> Outcome:
        """The shard's outcome with a note that its chunks could not be stored, and why."""
        if not self._failure or not isinstance(outcome, ShardReport):
            return outcome
        note = f"client process {self._shard} could not store its chunks ({self._failure}): the parent has stored them instead"
        return msgspec.structs.replace(outcome, notes=(*outcome.notes, note))

    def _store(self) -> None:
        try:
            _store_shard(self._spool, self._shard, self._to)
            self.is_stored = True
        except UserError as error:
            self._failure = error.what
        except Exception as error:  # the parent gets the chunks in another way, and the reason
            self._failure = f"{type(error).__name__}: {error}"


def _store_shard(spool: Path, shard: int, to: Destination) -> None:
    """Store a shard's chunks and texts as Parquet files. Raises UserError when several attempts, of `storage.timeout` each, have failed."""
    replaced = set() if _IDENTITY.isdisjoint({*to.environment, *to.files}) else _IDENTITY
    environment = {name: value for name, value in os.environ.items() if name not in replaced} | to.environment
    with tempfile.TemporaryDirectory(dir=spool) as folder:
        for name, content in to.files.items():
            environment[name] = f"{folder}/{name}"
            Path(environment[name]).write_bytes(content)
        with connect(to.url, to.storage, environment) as objects:
            for path in write_shard_files(spool, shard, spool, to.classes):
                objects.put(path.name, path)
                path.unlink()
