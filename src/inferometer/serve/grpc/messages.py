"""Assembles the messages of a call from the pieces of DATA that arrive.

A message has a prefix of five bytes: whether it is compressed, and its size. It is copied once: small ones into one
bytearray, a large one into a buffer of its announced size.
"""

from struct import Struct
from typing import Any

from google.protobuf.message import DecodeError

from inferometer.serve.memory import untouched
from inferometer.serve.models.types import Refused
from inferometer.wire.failures import bounded

Data = bytes | memoryview

PREFIX = Struct(">BL")
_LARGE = 64 * 1024


def parse(kind: Any, data: Data) -> Any:
    """Return a message of this class; raises Refused if the data is not one."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        why = f"the message is not a valid {kind.DESCRIPTOR.name}: {bounded(str(error))}"
        raise Refused("INTERNAL", why) from None


class Inbox:
    """The incomplete messages of a call. Messages are taken one at a time, so that a call can stop taking them."""

    __slots__ = ("_data", "_filled", "_is_compressed", "_large", "_limit", "is_ended")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._large: memoryview | None = None
        self._filled = self._is_compressed = 0
        self.is_ended = False
        """Whether the client has sent everything."""

    @property
    def is_empty(self) -> bool:
        return not self._data and self._large is None

    def put(self, data: Data) -> None:
        if self._large is not None and self._filled < len(self._large):
            data = memoryview(data)
            count = min(len(data), len(self._large) - self._filled)
            self._large[self._filled : self._filled + count] = data[:count]
            self._filled += count
            data = data[count:]
        self._data += data

    def next(self) -> tuple[int, Data] | None:
        """Return the next message and whether it is compressed, or None; raises Refused if it is too large."""
        message: Data
        if self._large is None:
            if len(self._data) < PREFIX.size:
                return None
            end = PREFIX.size + self._size()
            if len(self._data) >= end:
                message = bytes(memoryview(self._data)[PREFIX.size : end])
                del self._data[:end]
                return self._is_compressed, message
            if end > _LARGE:
                rest, self._data = memoryview(self._data)[PREFIX.size :], bytearray()
                self._large, self._filled = untouched(end - PREFIX.size), len(rest)
                self._large[: len(rest)] = rest
        if self._large is None or self._filled < len(self._large):
            return None
        message, self._large = self._large, None
        return self._is_compressed, message

    def _size(self) -> int:
        self._is_compressed, size = PREFIX.unpack_from(self._data)
        if self._is_compressed > 1:
            raise Refused("INTERNAL", f"the prefix of a message starts with {self._is_compressed}, not with 0 or 1")
        if size > self._limit:
            why = f"the message has {size} bytes; the server accepts at most {self._limit}"
            raise Refused("RESOURCE_EXHAUSTED", why)
        return int(size)
