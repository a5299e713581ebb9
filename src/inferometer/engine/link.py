"""A socket: opened, written to, and read with the stamp of when the bytes arrived. What they mean is its user's business.

The hot path is `_readable`, which takes the bytes and their stamp and puts both into the inbox. Everything that follows
happens after the stamps were taken and cannot change them.
"""

import asyncio
import errno
import os
import socket
import sys
import weakref
from collections.abc import Callable
from typing import Protocol

from inferometer.engine.inbox import Inbox
from inferometer.timing.clock import CMSG_SPACE, ask_for_stamps, now, unpack_stamp
from inferometer.types import Fail
from inferometer.wire.failures import bounded

_READ = 65_536
KEPT_FILES = 16
"""Descriptors that no link takes. The client needs some now and then while it runs: for its health, the live view, a server's
statistics."""
_OUT_OF_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN)


class Clock:
    """The wall clock's offset to the monotonic one, kept up to date by health.py; stamps: whether the kernel takes them."""

    __slots__ = ("kernel_stamps", "offset")

    def __init__(self, offset: int, kernel_stamps: bool) -> None:
        self.offset = offset
        self.kernel_stamps = kernel_stamps


class User(Protocol):
    """Who a link belongs to (connection.py, channel.py)."""

    def established(self) -> None:
        """Bytes can be exchanged."""

    def received(self, data: bytes, at: int, delay: int) -> None:
        """Bytes that arrived at `at` and lay unread for `delay`; none: the server closed, or `link.error` says what broke it."""

    def broken(self, fail: Fail) -> None:
        """It could not be opened, or TLS failed."""

    def drained(self) -> None:
        """All that was written is with the kernel, after some of it had to wait."""


class Link:
    __slots__ = (
        "_clock",
        "_fd",
        "_inbox",
        "_loop",
        "_out",
        "_reader",
        "_recvmsg",
        "_send",
        "_sock",
        "_user",
        "connect_from",
        "deliver",
        "error",
        "is_open",
        "is_ready",
        "is_writing",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, inbox: Inbox, user: User) -> None:
        self._loop = loop
        self._clock = clock
        self._inbox = inbox
        self._user = user
        self._out: memoryview | bytes = b""  # what the kernel would not take yet
        self._reader: weakref.ref[object] | None = None
        self.deliver: Callable[[bytes, int, int], None] = user.received
        self.error: OSError | None = None  # what ended the reading, where it was not the server's close
        self.is_open = False  # has a socket
        self.is_ready = False  # connected, and TLS done
        self.is_writing = False  # waits until the kernel takes more
        self.connect_from = 0

    # --- opening ---

    def connect(self, family: int, address: tuple[object, ...]) -> None:
        """Open it. Never raises: the user hears what became of it."""
        self.connect_from = now()
        try:
            sock = _new_socket(family)
        except OSError as error:
            self._user.broken(_open_failure(error))
            return
        self._sock = sock
        self._fd = sock.fileno()
        self.is_open = True
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._clock.kernel_stamps:
            ask_for_stamps(sock)
        self._recvmsg = sock.recvmsg
        self._send = sock.send
        code = sock.connect_ex(address)
        if code in (0, errno.EINPROGRESS):
            self._loop.add_writer(self._fd, self._connected)
            self.is_writing = True
        else:
            self._user.broken(_open_failure(OSError(code, os.strerror(code))))

    def _connected(self) -> None:
        self._loop.remove_writer(self._fd)
        self.is_writing = False
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._user.broken(_open_failure(OSError(code, os.strerror(code))))
            return
        self._read_on()
        self._established()

    def _established(self) -> None:
        """Bytes can be exchanged. (TLS has its handshake first.)"""
        self.is_ready = True
        self._user.established()

    # --- reading ---

    def _read_on(self) -> None:
        """Have the loop call `_readable`, and notice when it stops doing so.

        uvloop calls a reader once more when a socket has failed, and never again. If bytes still lay in front of the reset,
        that call gets those and nobody would ever see the reset. It lets go of the bound method then, which a weak reference
        tells us at no cost to the hot path.
        """
        reader = self._readable
        self._reader = weakref.ref(reader, self._reader_dropped)
        self._loop.add_reader(self._fd, reader)

    def _reader_dropped(self, _: object) -> None:
        if self.is_open:
            self._loop.call_soon(self._drain, ConnectionResetError())

    def _drain(self, error: OSError) -> None:
        """Read up to the error, or to the end."""
        while self.is_open and self._has_bytes():
            self._readable()
        if self.is_open:
            self._unreadable(error)

    def _has_bytes(self) -> bool:
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._recvmsg(_READ, CMSG_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._unreadable(error)
            return
        at = now()
        delay = -1
        if ancillary:
            seconds, nanoseconds = unpack_stamp(ancillary[0][2])
            stamp = seconds * 1_000_000_000 + nanoseconds - self._clock.offset
            if stamp <= at:
                delay = at - stamp
                at = stamp
        self._inbox.put(self, data, at, delay)

    def _unreadable(self, error: OSError) -> None:
        """It takes its turn behind the bytes that came before it."""
        self.error = error
        self._inbox.put(self, b"", now(), -1)

    # --- writing ---

    def write(self, data: bytes) -> None:
        """Send it, now or as soon as the kernel takes it."""
        if self.is_writing:
            self._out = bytes(self._out) + data
            return
        try:
            count = self._send(data)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            self._unwritable(error)
            return
        if count < len(data):
            self._out = memoryview(data)[count:]
            self._loop.add_writer(self._fd, self._writable)
            self.is_writing = True

    def _writable(self) -> None:
        try:
            count = self._send(self._out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._loop.remove_writer(self._fd)
            self._unwritable(error)
            return
        self._out = self._out[count:]
        if not self._out:
            self._loop.remove_writer(self._fd)
            self.is_writing = False
            self._user.drained()

    def _unwritable(self, error: OSError) -> None:
        """The user hears of it when what the server said before has been read: it may be the reason, or the answer."""
        self.is_writing = True  # for good
        self._out = b""
        self._loop.call_soon(self._drain, error)

    def shut(self) -> None:
        """Close it; nobody is told."""
        if self.is_open:
            self.is_open = self.is_ready = False
            self._reader = None
            self._loop.remove_reader(self._fd)
            if self.is_writing:
                self._loop.remove_writer(self._fd)
                self.is_writing = False
            self._sock.close()


def _new_socket(family: int) -> socket.socket:
    """One that leaves the client its KEPT_FILES. A new descriptor is the lowest that is free, so its number says whether it does."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    if sock.fileno() >= file_limit() - KEPT_FILES:
        sock.close()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return sock


def file_limit() -> int:
    """How many files this process may have open."""
    try:
        import resource  # noqa: PLC0415
    except ImportError:
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit in (resource.RLIM_INFINITY, -1) else limit


def _open_failure(error: OSError) -> Fail:
    if error.errno in _OUT_OF_SOCKETS:
        return Fail("no_sockets", out_of_sockets(error))
    if error.errno == errno.ECONNREFUSED:
        return Fail("connect_refused", "")
    return Fail("connect_failed", bounded(error.strerror or str(error)))


def out_of_sockets(error: OSError) -> str:
    """Which limit was hit, and the remedy."""
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAGAIN):
        return "no free local port (net.ipv4.ip_local_port_range): lower the concurrency, or measure from several addresses"
    if error.errno == errno.ENFILE:
        return "the system's file limit (fs.file-max) is reached: raise it, or lower the concurrency"
    return f"the limit of {file_limit()} open files (ulimit -n) is hit: raise it, use more processes, or lower the load"
