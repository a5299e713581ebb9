"""Object stores: S3 and its look-alikes (`s3://bucket/prefix`), and Google Cloud Storage (`gs://bucket/prefix`).

    with connect("s3://bucket/prefix") as objects:
        objects.check_writable()
        objects.put("run/manifest.json", Path("runs/run/manifest.json"))

Calls take a bounded time: they are made by a child process (object_child.py), which is ended when nothing has moved for
`storage.timeout`. Uploads and downloads are tried several times, and count as done when the size of the object is right.
Credentials come from the environment and the files that the clients of Amazon and Google read; they are never stored.
"""

import contextlib
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferometer.config.storage import Storage, check_endpoint, split_url
from inferometer.errors import UserError

_ATTEMPTS = 4
_FIRST_PAUSE = 0.5
"""Seconds before the second attempt; each pause is twice as long as the one before."""
_SLOWEST_ANSWER = 4
"""A listing may take this many timeouts in total: pages of it do not count as movement."""

_CHECK_ENDPOINT = "check {storage.endpoint} (or AWS_ENDPOINT_URL, STORAGE_EMULATOR_HOST), and the network"
_CREDENTIALS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")

_CAUSES = (
    (("NO_SUCH_BUCKET", "NoSuchBucket", "RESOURCE_NOT_FOUND", "bucket does not exist"), "there is no such bucket", "create it, or change {output}"),
    (
        ("INVALID_ACCESS_KEY_ID", "InvalidAccessKeyId", "SIGNATURE_DOES_NOT_MATCH", "SignatureDoesNotMatch", "INVALID_CLIENT_TOKEN", "UNAUTHENTICATED", "ExpiredToken", "InvalidToken"),
        "the credentials are not accepted",
        "check the credentials in the environment: see `inferometer docs storage`",
    ),
    (
        ("ACCESS_DENIED", "AccessDenied", "PERMISSION_DENIED", "HTTP status 403", "Forbidden"),
        "access is denied",
        "check the credentials and their permissions (read, write and list): see `inferometer docs storage`",
    ),
    (
        ("credentials", "Credentials"),
        "there are no usable credentials",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS: see `inferometer docs storage`",
    ),
    (("WRONG_SIZE",), "an object has another size than its file", "for an older S3 look-alike, see `inferometer docs storage`"),
    (
        ("NETWORK_CONNECTION", "curlCode", "Couldn't connect", "UNAVAILABLE", "Connection refused", "Could not resolve", "TIMEOUT"),
        "the store cannot be reached",
        _CHECK_ENDPOINT,
    ),
)  # fmt: skip
"""What messages of the clients contain, what that means, and what to do next; the first that matches."""
_FINAL = {"there is no such bucket", "the credentials are not accepted", "access is denied"}
"""Causes that another attempt does not change."""


class StoreError(UserError):
    """What an object store refused, or that it did not respond. `is_final`: another attempt would not help."""

    def __init__(self, url: str, reason: str, remedy: str, is_final: bool) -> None:
        super().__init__(f"{url}: {reason}", remedy)
        self.reason = reason
        self.is_final = is_final


def connect(url: str, storage: Storage | None = None, environment: Mapping[str, str] | None = None) -> "ObjectStore":
    """Make the store for `url`; nothing is sent yet. Raises UserError when the URL is not one of a known kind of store.

    `environment` is where the credentials come from, if it is not the one of this process.
    """
    return ObjectStore(url, storage or Storage(), os.environ if environment is None else environment)


class ObjectStore:
    """The objects under a URL; names are relative to it."""

    def __init__(self, url: str, storage: Storage, environment: Mapping[str, str]) -> None:
        self._scheme, self._bucket, self._prefix = split_url(url)
        self.url = "/".join(part for part in (f"{self._scheme}://{self._bucket}", self._prefix) if part)
        self._timeout = float(storage.timeout)
        self._variables = environment
        self._settings = settings_for(self._scheme, storage, environment)
        self._child: _Pipe | None = None

    @property
    def endpoint(self) -> str:
        """The endpoint, if it is not that of Amazon or Google."""
        return str(self._settings["endpoint"] or "")

    def __enter__(self) -> "ObjectStore":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def check_writable(self) -> None:
        """Write a small object and delete it again. Raises UserError when that is not possible, within `storage.timeout`."""
        name = f".inferometer-{secrets.token_hex(4)}"
        until = time.monotonic() + self._timeout
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"inferometer checks that it can write here\n")
            file.flush()
            self._call("put", until, name=name, path=file.name)
        try:
            self._call("delete", until, name=name)
        except StoreError:
            self.close()  # permission to write is enough

    def put(self, name: str, content: bytes | Path) -> None:
        """Store an object, and check its size. Raises UserError when several attempts have failed."""
        if isinstance(content, bytes):
            with tempfile.NamedTemporaryFile() as file:
                file.write(content)
                file.flush()
                self._try("put", name=name, path=file.name)
        else:
            self._try("put", name=name, path=str(content.resolve()))

    def names(self, prefix: str = "") -> list[str]:
        """The names of all objects under a prefix (a folder), sorted."""
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """The sizes of all objects under a prefix (a folder), by name."""
        sizes: dict[str, int] = self._try("sizes", prefix=prefix)
        return sizes

    def fetch(self, name: str, path: Path) -> None:
        """Copy an object to a file, which is complete or absent."""
        self.fetch_all({name: path})

    def fetch_all(self, wanted: Mapping[str, Path]) -> None:
        """Copy several objects to files at the same time."""
        if wanted:
            self._try("fetch", wanted={name: str(path.resolve()) for name, path in wanted.items()})

    def _try(self, command: str, **arguments: Any) -> Any:
        """Send a command, and again if it failed for a reason that may pass."""
        pause = _FIRST_PAUSE
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._call(command, None, **arguments)
            except StoreError as error:
                if error.is_final:
                    raise
            time.sleep(pause)
            pause *= 2
        return self._call(command, None, **arguments)

    def _call(self, command: str, until: float | None, **arguments: Any) -> Any:
        try:
            if self._child is None:
                self._child = _Pipe(_environment(self._settings, self._variables))
                opening = {"scheme": self._scheme, "bucket": self._bucket, "prefix": self._prefix}
                self._child.call({"do": "open", **opening, "settings": self._settings}, self._timeout, until)
            timeout = self._timeout * (_SLOWEST_ANSWER if command == "sizes" else 1)
            return self._child.call({"do": command, **arguments}, timeout, until)
        except _ChildError as error:
            raise self._explained(command, str(error)) from None
        except TimeoutError:
            self.close()
            remedy = f"{_CHECK_ENDPOINT}; {{storage.timeout}} is the limit"
            raise StoreError(self.url, f"the store did not respond within {self._timeout:g} s", remedy, False) from None
        except BaseException:  # Ctrl-C: the child may be in the middle of a transfer
            self.close()
            raise

    def _explained(self, command: str, message: str) -> StoreError:
        where = f"{self.url} at {self.endpoint}" if self.endpoint else self.url
        for words, reason, remedy in _CAUSES:
            if any(word in message for word in words):
                return StoreError(where, reason, remedy, reason in _FINAL)
        if message.startswith("FileNotFoundError"):
            if command == "put":
                return StoreError(where, *_CAUSES[0][1:], True)
            return StoreError(where, "there is no such object", "list what is there with `inferometer runs URL`", True)
        text = " ".join(message.partition(": ")[2].split())
        for name in _CREDENTIALS:
            if value := self._variables.get(name):
                text = text.replace(value, "(removed)")
        return StoreError(where, text[:200] or "the transfer failed", "check {output} and the section `storage`", False)


def settings_for(scheme: str, storage: Storage, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the child needs to know: the settings, completed from the environment. They contain no credentials."""
    endpoint, anonymous = storage.endpoint, storage.anonymous
    if not endpoint and scheme == "s3":
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if not endpoint and scheme == "gs":
        endpoint = environment.get("STORAGE_EMULATOR_HOST")
        if endpoint and "://" not in endpoint:
            endpoint = f"http://{endpoint}"
        anonymous = anonymous or bool(endpoint)
    check_endpoint(endpoint)
    return {
        "endpoint": endpoint,
        "region": storage.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"),
        "addressing": storage.addressing,
        "anonymous": anonymous,
        "timeout": float(storage.timeout),
    }


def _environment(settings: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of the child, with defaults for S3 look-alikes."""
    defaults: dict[str, str] = {}
    if settings["endpoint"]:
        # Older look-alikes store the framing of bodies that have a checksum at their end as if it were content.
        defaults = {
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }
    if settings["endpoint"] or settings["anonymous"] or "AWS_ACCESS_KEY_ID" in variables:
        defaults["AWS_EC2_METADATA_DISABLED"] = "true"  # the client would wait for a service that is not needed
    return {**defaults, **variables}


class _ChildError(Exception):
    """The child reported an error."""


class _Pipe:
    """A child process, and the lines that go to it and come from it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inferometer.store.object_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to this process only
        )
        self._rest = b""

    def call(self, command: dict[str, Any], timeout: float, until: float | None) -> Any:
        """Send a command and return its result. Raises TimeoutError when nothing has moved for `timeout`, or after `until`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise _ChildError("error: the process that transfers files has ended") from None
        while True:
            deadline = time.monotonic() + timeout
            message = json.loads(self._line(deadline if until is None else min(deadline, until)))
            if "error" in message:
                raise _ChildError(message["error"])
            if "result" in message:
                return message["result"]

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            data = os.read(descriptor, 1 << 20)
            if not data:
                raise _ChildError("error: the process that transfers files has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # something was still buffered
                stream.close()
