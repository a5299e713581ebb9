"""System shared memory that clients registered: inputs are read from it and outputs written to it without a copy on the wire.

A key is the name of a POSIX shared memory object, which is a file in /dev/shm: no other folder can be reached with it.
The messages are Triton's.
"""

import mmap
import os
import stat
from pathlib import Path

import msgspec

from inferometer.serve.models.types import Refused

FOLDER = Path("/dev/shm")


class Region(msgspec.Struct, frozen=True):
    name: str
    key: str
    offset: int
    byte_size: int
    memory: mmap.mmap
    """The object from its start; the region is `byte_size` bytes from `offset`."""


class Regions:
    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        if name in self._regions:
            raise Refused("ALREADY_EXISTS", f"shared memory region '{name}' already in manager")
        if byte_size < 1:
            raise Refused(
                "INVALID_ARGUMENT",
                f"failed to register shared memory region '{name}': its size must be at least 1 byte, not {byte_size}",
            )
        memory = self._map(key)
        if offset < 0 or offset + byte_size > len(memory):
            raise Refused("INTERNAL", f"Invalid shared memory region: '{key}'")
        self._regions[name] = Region(name, key, offset, byte_size, memory)

    def unregister(self, name: str = "") -> None:
        """All of them where no name is given. The memory stays mapped until requests under way are done with it."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[Region]:
        if not name:
            return list(self._regions.values())
        if name not in self._regions:
            raise Refused("NOT_FOUND", f"Unable to find system shared memory region: '{name}'")
        return [self._regions[name]]

    def read(self, region: str, byte_size: int, offset: int = 0) -> memoryview:
        """The memory itself: it changes when the client changes it."""
        found = self._regions.get(region)
        if found is None:
            raise Refused("NOT_FOUND", f"Unable to find shared memory region: '{region}'")
        if offset < 0 or byte_size < 0 or offset + byte_size > found.byte_size:
            raise Refused("INVALID_ARGUMENT", f"Invalid offset + byte size for shared memory region: '{region}'")
        start, end = found.offset + offset, found.offset + offset + byte_size
        if end > found.memory.size():  # to touch what is gone would end the process
            raise Refused(
                "INVALID_ARGUMENT", f"shared memory region '{region}' was made smaller after it was registered"
            )
        return memoryview(found.memory)[start:end]

    def write(self, region: str, offset: int, byte_size: int, data: bytes | memoryview) -> None:
        """`data` at the place that was meant for up to `byte_size` bytes."""
        self.read(region, byte_size, offset)[: len(data)] = data

    def _map(self, key: str) -> mmap.mmap:
        name = key.removeprefix("/")
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise Refused("INTERNAL", f"Unable to open shared memory region: '{key}'")
        try:
            # Not through links, and without waiting for whoever may be at the other end of a pipe.
            file = os.open(self._folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            raise Refused("INTERNAL", f"Unable to open shared memory region: '{key}'") from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise Refused("INTERNAL", f"Unable to open shared memory region: '{key}'")
            return mmap.mmap(file, 0)
        except (OSError, ValueError):  # an empty file cannot be mapped
            raise Refused("INTERNAL", f"Invalid shared memory region: '{key}'") from None
        finally:
            os.close(file)
