"""System shared memory registered by clients: inputs are read from it and outputs written to it, instead of sending
them.

A key is the name of a POSIX shared memory object, which is a file in /dev/shm; no other folder can be reached with it.
It is read and written as a file and never mapped: a client may truncate it at any time, and touching a mapping of what
is gone would end the process. The messages are Triton's.
"""

import os
import resource
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from inferometer.serve.models.types import Refused
from inferometer.tensors import Tensor

_MOST, _MOST_OF_KEY = 4096, 1024
"""How many regions may be registered in total, if half of the process's open files are enough, and with the same key."""


class Region:
    """A registered shared memory region: `byte_size` bytes from `offset` of a file, even if its name is reused. The file
    is open until the last reference is gone: the region may be unregistered while a request reads it."""

    def __init__(self, name: str, key: str, offset: int, byte_size: int, file: int) -> None:
        self.name, self.key, self.offset, self.byte_size, self.file = name, key, offset, byte_size, file
        self._close = os.close

    def __del__(self) -> None:
        self._close(self.file)


class RegionSlice(msgspec.Struct, frozen=True):
    """A tensor's bytes in a region. It may be read and written in any thread."""

    region: Region
    offset: int
    byte_size: int

    def read(self) -> bytes:
        """Return a copy, so that later changes by the client do not affect the request."""
        data = os.pread(self.region.file, self.byte_size, self.region.offset + self.offset)
        if len(data) < self.byte_size:
            raise self._smaller()
        return data

    def write(self, tensor: Tensor) -> None:
        """Write an output at the start; the rest stays as it is."""
        file, at, size = self.region.file, self.region.offset + self.offset, len(tensor.data)
        if size > self.byte_size:
            what = f"shared memory size specified with the request for output '{tensor.name}'"
            why = f"({self.byte_size} bytes) should be at least {size} bytes to hold the results"
            raise Refused("INTERNAL", f"{what} {why}")
        # Writing past an object's end would enlarge it again.
        if at + size > os.fstat(file).st_size or os.pwrite(file, tensor.data, at) < size:
            raise self._smaller()

    def _smaller(self) -> Refused:
        words = "was truncated after it was registered"
        return Refused("INVALID_ARGUMENT", f"shared memory region '{self.region.name}' {words}")


class Regions:
    """All registered regions, by name."""

    def __init__(self, folder: Path = Path("/dev/shm")) -> None:
        self._folder = folder
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        if name in self._regions:
            raise Refused("ALREADY_EXISTS", f"shared memory region '{name}' already in manager")
        if byte_size < 1:
            raise Refused("INVALID_ARGUMENT", f"the size of shared memory region '{name}' must be at least 1 byte")
        file, leaf = -1, key.removeprefix("/")
        most = min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        of_key = sum(region.key.removeprefix("/") == leaf for region in self._regions.values())
        if len(self._regions) >= most or of_key >= _MOST_OF_KEY:
            why = f"at most {most} shared memory regions, and {_MOST_OF_KEY} with the same key, can be registered"
            raise Refused("RESOURCE_EXHAUSTED", f"{why}: unregister some first")
        if leaf and "/" not in leaf and leaf not in (".", ".."):
            with suppress(OSError, ValueError):
                # Do not follow links, and do not block on the other end of a FIFO.
                file = os.open(self._folder / leaf, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if file < 0:
            raise Refused("INTERNAL", f"Unable to open shared memory region: '{key}'")
        region, found = Region(name, key, offset, byte_size, file), os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or offset < 0 or offset + byte_size > found.st_size:
            raise Refused("INTERNAL", f"Invalid shared memory region: '{key}'")
        self._regions[name] = region

    def unregister(self, name: str = "") -> None:
        """Unregister a region, or all if no name is given. The object stays open until requests in progress are done
        with it."""
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

    def find(self, region: str, byte_size: int, offset: int = 0) -> RegionSlice:
        found = self._regions.get(region)
        if found is None:
            raise Refused("NOT_FOUND", f"Unable to find shared memory region: '{region}'")
        if offset < 0 or byte_size < 0 or offset + byte_size > found.byte_size:
            raise Refused("INVALID_ARGUMENT", f"Invalid offset + byte size for shared memory region: '{region}'")
        return RegionSlice(found, offset, byte_size)
