"""The process that talks to an object store for `objects.py`, through pyarrow.fs.

It is a process of its own because a call of pyarrow's clients may block for minutes, during which Python does not handle Ctrl-C;
a process can be ended. It reads one command per line of standard input (JSON), and writes lines of JSON to standard output:
`{"moved": true}` whenever bytes have moved, then `{"result": ...}` or `{"error": "..."}`. It ends when standard input is closed,
whatever it is doing, so it does not outlive its parent.

What pyarrow's clients report is not enough to trust an upload: the close of a file may succeed although the connection was lost
(GCS), and some S3 look-alikes store the framing of a chunked body inside the object. So the size of each object is checked.
"""

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

_PIECE = 8 << 20
"""Bytes per write: more than the smallest part of an S3 upload (5 MiB)."""
_PARALLEL = 16
"""Objects that are fetched at the same time."""


def main() -> None:
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    child = _Child()
    while True:
        command = json.loads(lines.get())
        try:
            _write({"result": getattr(child, f"do_{command.pop('do')}")(**command)})
        except Exception as error:  # the parent explains it
            _write({"error": f"{type(error).__name__}: {error}"})


def _read_lines(lines: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


_output = threading.Lock()


def _write(message: dict[str, Any]) -> None:
    with _output:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def _moved() -> None:
    _write({"moved": True})


class _Child:
    """The commands."""

    def __init__(self) -> None:
        self._fs: Any = None
        self._root = ""

    def do_open(self, scheme: str, bucket: str, prefix: str, settings: dict[str, Any]) -> None:
        self._fs = _OPENERS[scheme](bucket, settings)
        self._root = f"{bucket}/{prefix}" if prefix else bucket

    def do_put(self, name: str, path: str) -> None:
        size, target = Path(path).stat().st_size, f"{self._root}/{name}"
        stream = self._fs.open_output_stream(target)
        with open(path, "rb") as file:  # noqa: PTH123
            while piece := file.read(_PIECE):
                stream.write(piece)
                _moved()
        stream.close()  # only the first close reports an error
        stored = self._fs.get_file_info(target).size
        if stored != size:
            raise OSError(f"WRONG_SIZE: {stored if stored is not None else 0} bytes are stored instead of {size}")

    def do_delete(self, name: str) -> None:
        self._fs.delete_file(f"{self._root}/{name}")

    def do_sizes(self, prefix: str) -> dict[str, int]:
        from pyarrow import fs  # noqa: PLC0415

        base = f"{self._root}/{prefix}".rstrip("/")
        found = self._fs.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
        if not found and self._fs.get_file_info(self._root.partition("/")[0]).type == fs.FileType.NotFound:
            raise OSError("NO_SUCH_BUCKET")
        start = len(self._root) + 1
        return {each.path[start:]: each.size for each in found if each.type == fs.FileType.File}

    def do_fetch(self, wanted: dict[str, str]) -> None:
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for done in [pool.submit(self._fetch, name, path) for name, path in wanted.items()]:
                done.result()

    def _fetch(self, name: str, path: str) -> None:
        source, target = f"{self._root}/{name}", Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        size = self._fs.get_file_info(source).size
        if size is None:
            raise FileNotFoundError(f"there is no object {name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._fs.open_input_stream(source) as stream, partial.open("wb") as file:
                while piece := stream.read(_PIECE):
                    file.write(piece)
                    _moved()
            if partial.stat().st_size != size:
                raise OSError(f"WRONG_SIZE: {partial.stat().st_size} bytes of {name} arrived instead of {size}")
            partial.replace(target)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()


def _open_s3(bucket: str, settings: dict[str, Any]) -> Any:
    from pyarrow import fs  # noqa: PLC0415

    endpoint, region, timeout = settings["endpoint"], settings["region"], settings["timeout"]
    if region is None and not endpoint and not settings["anonymous"]:
        with contextlib.suppress(OSError):
            region = fs.resolve_s3_region(bucket)
    options: dict[str, Any] = {
        "anonymous": settings["anonymous"],
        "request_timeout": timeout,
        "connect_timeout": min(timeout, 5.0),
        # Without background writes, a write returns when the store has the part: memory is bounded, and errors show at once.
        "background_writes": False,
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=2),
    }
    if region or endpoint:
        options["region"] = region or "us-east-1"
    if settings["addressing"] == "path" and not endpoint:
        endpoint = f"https://s3.{options.get('region', 'us-east-1')}.amazonaws.com"  # pyarrow then uses the path
    if endpoint:
        scheme, _, host = endpoint.rstrip("/").partition("://")
        options |= {"scheme": scheme, "endpoint_override": host}
        options["force_virtual_addressing"] = settings["addressing"] == "virtual"
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        options["tls_ca_file_path"] = bundle
    try:
        return fs.S3FileSystem(**options, allow_delayed_open=True)  # one request for a small object, instead of three
    except TypeError:  # an older pyarrow
        return fs.S3FileSystem(**options)


def _open_gcs(bucket: str, settings: dict[str, Any]) -> Any:
    from pyarrow import fs  # noqa: PLC0415

    options: dict[str, Any] = {
        "anonymous": settings["anonymous"],
        "retry_time_limit": timedelta(seconds=max(1.0, settings["timeout"] / 3)),
    }
    if endpoint := settings["endpoint"]:
        scheme, _, host = endpoint.rstrip("/").partition("://")
        options |= {
            "scheme": scheme,
            "endpoint_override": host,
            "project_id": os.environ.get("GOOGLE_CLOUD_PROJECT", "p"),
        }
    return fs.GcsFileSystem(**options)


_OPENERS: dict[str, Callable[[str, dict[str, Any]], Any]] = {"s3": _open_s3, "gs": _open_gcs}


if __name__ == "__main__":
    main()
