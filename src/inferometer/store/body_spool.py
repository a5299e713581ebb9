"""The texts of requests and responses on disk as they happen (`keep: text`): one file per shard, in the spool folder.

    SPOOL/0.bodies    for each request: a header (_HEADER), then the body as it was sent, the generated text and the finish reason, in UTF-8

Texts are collected and appended with one system call every few milliseconds, so memory does not grow with the run, and a process that dies
leaves behind what it had written. A last entry that a crash or a full disk cut off is left out. Headers are never stored, and secrets of
the config are removed before anything is written.
"""

import errno
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from inferometer.printable import REMOVED
from inferometer.records import Body

_HEADER = struct.Struct("<qqiiiIIH")
"""id, session, turn, stage, class; the number of bytes of the request, of the response and of the finish reason."""
_MOST_PENDING = 256 << 10
"""Bytes that are collected at most before they are written."""
_READ = 1 << 20
"""Bytes that are read at a time."""
_END_OF_HEAD = b"\r\n\r\n"


class SentRequest(Protocol):
    """A request that has ended (engine/inflight.py). `data` are the bytes of an HTTP/1.1 request."""

    id: int
    session: int
    turn: int
    stage: int
    class_: int
    data: bytes


class BodySpool:
    """The shard's side: appends the texts of requests that ended."""

    def __init__(self, folder: Path, shard: int, secrets: tuple[str, ...] = ()) -> None:
        self._file = _path(folder, shard).open("wb", buffering=0)
        self._size = 0
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._secrets = [word.encode() for word in secrets]

    def add(self, sent: SentRequest, text: str, finish_reason: str | None) -> None:
        """Add a request and the text of its response. Raises OSError when the disk is full."""
        head_end = sent.data.find(_END_OF_HEAD)
        request = self._hide(sent.data[head_end + len(_END_OF_HEAD) :])
        response = self._hide(text.encode("utf-8", "replace"))
        finish = self._hide((finish_reason or "").encode("utf-8", "replace"))[:64]
        header = _HEADER.pack(
            sent.id, sent.session, sent.turn, sent.stage, sent.class_, len(request), len(response), len(finish)
        )
        self._pending += (header, request, response, finish)
        self._pending_size += _HEADER.size + len(request) + len(response) + len(finish)
        if self._pending_size > _MOST_PENDING:
            self.flush()

    def flush(self) -> None:
        """Write what was added. Raises OSError when the disk is full, and then drops what does not fit."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        self._pending, self._pending_size = [], 0
        try:
            written = self._file.write(data)
        except OSError:
            self._cut()
            raise
        if written != len(data):
            self._cut()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(data)

    def close(self) -> None:
        self._file.close()

    def _cut(self) -> None:
        self._file.seek(self._size)
        self._file.truncate()

    def _hide(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, REMOVED.encode())
        return data


def has_bodies(folder: Path, shards: Iterable[int]) -> bool:
    """Return whether any of these shards kept texts."""
    return any(_path(folder, shard).exists() for shard in shards)


def read_bodies(folder: Path, shards: Iterable[int]) -> Iterator[Body]:
    """Yield the texts of these shards, without an entry that was cut off."""
    for shard in shards:
        entries, offset = entries_of(folder, shard, 0, _READ)
        while entries:
            for entry in entries:
                yield _body(entry)
            entries, offset = entries_of(folder, shard, offset, _READ)


class Entry(NamedTuple):
    """The texts of one request as they are in the file."""

    id: int
    session: int
    turn: int
    stage: int
    class_: int
    request: bytes
    response: bytes
    finish: bytes


def entries_of(folder: Path, shard: int, offset: int, most: int) -> tuple[list[Entry], int]:
    """Read complete entries from an offset on, until there are `most` bytes of them; return them and the offset after the last one."""
    entries: list[Entry] = []
    path, end = _path(folder, shard), offset
    if not path.exists():
        return entries, end
    with path.open("rb") as file:
        file.seek(offset)
        while end - offset < most and len(head := file.read(_HEADER.size)) == _HEADER.size:
            id, session, turn, stage, class_, request, response, finish = _HEADER.unpack(head)
            data = file.read(request + response + finish)
            if len(data) < request + response + finish:
                break
            texts = data[:request], data[request : request + response], data[request + response :]
            entries.append(Entry(id, session, turn, stage, class_, *texts))
            end += _HEADER.size + len(data)
    return entries, end


def append_entries(folder: Path, shard: int, entries: Iterable[Entry]) -> None:
    """Append entries to a copy of a shard's file. Raises OSError when the disk is full."""
    with _path(folder, shard).open("ab") as file:
        for entry in entries:
            texts = entry.request, entry.response, entry.finish
            file.write(_HEADER.pack(*entry[:5], *map(len, texts)) + b"".join(texts))


def _body(entry: Entry) -> Body:
    return Body(
        id=entry.id,
        session=entry.session,
        turn=entry.turn,
        stage=entry.stage,
        class_=entry.class_,
        request=entry.request.decode("utf-8", "replace"),
        response=entry.response.decode("utf-8", "replace") if entry.response else None,
        finish_reason=entry.finish.decode("utf-8", "replace") or None,
    )


def _path(folder: Path, shard: int) -> Path:
    return folder / f"{shard}.bodies"
