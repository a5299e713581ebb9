"""A socket: opened, written to, and read by the inbox. What the bytes mean is its user's business."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

from inferometer.engine.reader import Reader
from inferometer.open_files import RESERVED_FILES, file_limit
from inferometer.timing.clock import ask_for_stamps, now
from inferometer.types import Fail
from inferometer.wire.failures import bounded

_OUT_OF_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN)


class User(Protocol):
    """Who a link belongs to (http1_connection.py, http2_connection.py)."""

    def established(self) -> None:
        """Bytes can be exchanged."""

    def received(self, data: bytes, at: int, delay: int) -> None:
        """Bytes that arrived at `at` and lay unread for `delay`; none: the server closed, or `link.error` says what broke it."""

    def broken(self, fail: Fail) -> None:
        """It could not be opened, or TLS failed."""

    def drained(self) -> None:
        """All that was written is with the kernel, after some of it had to wait."""


class Transport:
    __slots__ = (
        "_fd",
        "_inbox",
        "_loop",
        "_out",
        "_send",
        "_sock",
        "_user",
        "connect_from",
        "deliver",
        "error",
        "is_open",
        "is_ready",
        "is_writing",
        "receive",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, inbox: Reader, user: User) -> None:
        self._loop = loop
        self._inbox = inbox
        self._user = user
        self._out: memoryview | bytes = b""  # what the kernel would not take yet
        self.receive: Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]
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
        if self._inbox.clock.kernel_stamps:
            ask_for_stamps(sock)
        self.receive = sock.recvmsg
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
        self._inbox.watch(self._fd, self)
        self._established()

    def _established(self) -> None:
        """Bytes can be exchanged. (TLS has its handshake first.)"""
        self.is_ready = True
        self._user.established()

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
        self._loop.call_soon(self._read_out, error)

    def _read_out(self, error: OSError) -> None:
        if self.is_open:
            self._inbox.read_out(self._fd, error)

    def read_until(self, instant: int) -> None:
        """Let the user hear now what came by that instant and lies unread."""
        if self.is_open:
            self._inbox.read_until(self._fd, instant)

    def shut(self) -> None:
        """Close it; nobody is told."""
        if self.is_open:
            self.is_open = self.is_ready = False
            self._inbox.forget(self._fd)
            if self.is_writing:
                self._loop.remove_writer(self._fd)
                self.is_writing = False
            self._sock.close()


def _new_socket(family: int) -> socket.socket:
    """One that leaves the client its RESERVED_FILES. A new descriptor is the lowest that is free, so its number says whether it does."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    if sock.fileno() >= file_limit() - RESERVED_FILES:
        sock.close()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return sock


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
