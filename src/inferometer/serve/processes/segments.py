"""Tensors on a link: small ones inside the message, large ones in shared memory.

The sender copies large tensors into a segment, a memfd of its own; the receiver maps it as /proc/PID/fd/NUMBER and uses
it in place. When nothing refers to the receiver's view any longer, the sender may use the segment again. No segment has a
name, so none outlives the processes.
"""

import mmap
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from inferometer.serve.processes.link import Link
from inferometer.tensors import Tensor

INLINE = 32 << 10
"""Bytes up to which a message carries its tensors itself."""
_ALIGN = 64
_SMALLEST = 1 << 20
_IDLE = 256 << 20
"""Bytes of unused segments that are kept for the next tensors: new memory costs more than the copy."""


class Segments:
    """The shared memory of a link, in both directions."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._own: dict[int, mmap.mmap] = {}
        self._idle: dict[int, int] = {}
        """Size of our unused segments, by number, longest unused first."""
        self._mapped: dict[int, mmap.mmap] = {}
        """The other process' segments."""
        link.handlers |= {"unused": self.unused, "dropped": self._dropped}
        link.lost.add_done_callback(lambda _: self._close())

    def pack(self, tensors: Iterable[Tensor]) -> tuple[int, list[tuple[Any, ...]]]:
        """Return the arguments for `unpack`. May be called in any thread, since it may copy a lot."""
        given = list(tensors)
        sizes = [len(tensor.data) for tensor in given]
        if sum(sizes) <= INLINE:
            return -1, [(one.name, one.datatype, one.shape, one.data) for one in given]
        number = self._take(sum(-(-size // _ALIGN) * _ALIGN for size in sizes))
        memory, at, packed = np.frombuffer(self._own[number], np.uint8), 0, []
        for one, size in zip(given, sizes, strict=True):
            if size:
                memory[at : at + size] = np.frombuffer(one.data, np.uint8)  # without the interpreter's lock
            packed.append((one.name, one.datatype, one.shape, (at, size)))
            at += -(-size // _ALIGN) * _ALIGN
        return number, packed

    def unpack(self, number: int, packed: list[Any]) -> dict[str, Tensor]:
        if number < 0:
            return {name: Tensor(name, datatype, tuple(shape), data) for name, datatype, shape, data in packed}
        if number not in self._mapped:
            file = os.open(f"/proc/{self._link.pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
            try:
                self._mapped[number] = mmap.mmap(file, 0)
            finally:
                os.close(file)
        whole = np.frombuffer(self._mapped[number], np.uint8)
        weakref.finalize(whole, self._free, number).atexit = False
        parts = [(name, kind, tuple(shape), whole[at : at + size].data) for name, kind, shape, (at, size) in packed]
        return {part[0]: Tensor(*part) for part in parts}

    def _close(self) -> None:
        for number in self._own:
            os.close(number)  # the mappings go when nothing refers to them
        self._own.clear()
        self._idle.clear()
        self._mapped.clear()

    def _take(self, size: int) -> int:
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        for number, has in list(self._idle.items()):
            if has == capacity and self._idle.pop(number, 0):  # another thread may have taken it
                return number
        number = os.memfd_create("inferometer")
        os.truncate(number, capacity)
        self._own[number] = mmap.mmap(number, capacity)
        return number

    def _free(self, number: int) -> None:
        """Tell the owner that nothing uses its segment any longer; called in any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._link.loop.call_soon_threadsafe(self._link.tell, "unused", number)

    def unused(self, number: int) -> None:
        """Keep our segment for the next tensors: the other process has no use for it any longer, or never got it."""
        if number not in self._own:
            return
        self._idle[number] = len(self._own[number])
        while sum(self._idle.values()) > _IDLE:
            old = next(iter(self._idle))
            if self._idle.pop(old, 0):  # see `_take`
                del self._own[old]
                self._link.tell("dropped", old)
                os.close(old)

    def _dropped(self, number: int) -> None:
        self._mapped.pop(number, None)
