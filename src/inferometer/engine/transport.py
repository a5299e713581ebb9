"""A TCP socket: connects, writes, and is read by the reader. What the bytes mean is up to the owner."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from inferometer.engine.reader import FIRST_READ_SIZE, Reader
from inferometer.open_files import RESERVED_FILES, file_limit
from inferometer.timing.clock import enable_stamps, now
from inferometer.timing.rtt import min_rtt
from inferometer.types import Fail
from inferometer.wire.failures import bounded

_OUT_OF_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN)


class TransportOwner(Protocol):
    """The connection that a transport belongs to (http1.py, http2_connection.py)."""

    def established(self) -> None:
        """The transport is ready to exchange bytes."""

    def received(self, pieces: Sequence[bytes], stamps: Sequence[int], delay: int) -> None:
        """Bytes arrived at the instants in `stamps`, and stayed unread for at most `delay`."""

    def closed(self, at: int) -> None:
        """The server closed, or `transport.error` is set."""

    def broken(self, fail: Fail) -> None:
        """The transport could not be opened, or TLS failed."""

    def drained(self) -> None:
        """Everything written has reached the kernel, after some of it had to wait."""


class Transport:
    __slots__ = (
        *("_closed", "_fd", "_loop", "_owner", "_reader", "_received", "_send", "_sock", "_unsent", "connect_started", "delay"),
        *("ending", "error", "is_closed", "is_open", "is_queued", "is_ready", "is_writing", "pieces", "read_size", "receive"),
        *("replica", "rtt", "stamps"),
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, reader: Reader, owner: TransportOwner) -> None:
        self._loop = loop
        self._reader = reader
        self._owner = owner
        self._unsent: memoryview | bytes = b""  # bytes that the kernel has not accepted yet
        self.receive: Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]
        self._received = owner.received
        self._closed = owner.closed
        # The next seven are the reader's, too.
        self.ending = (
            b""  # bytes that do not end with this may wait for others, and are then decoded with them; empty: none may
        )
        self.pieces: list[bytes] = []  # the reads that wait to be decoded; an empty one is the end, or an error
        self.stamps: list[int] = []  # when they arrived
        self.delay = -1  # how long any of them stayed unread; -1: not known
        self.is_queued = False  # it is about to be told to decode them
        self.read_size = FIRST_READ_SIZE  # maximum bytes of the next read
        self.error: OSError | None = None  # why reading ended, if the server did not simply close
        self.is_open = False  # there is a socket
        self.is_closed = False  # the owner closed it, perhaps before there was a socket
        self.is_ready = False  # connected, and the TLS handshake is done
        self.is_writing = False  # waiting for the kernel to accept more
        self.connect_started = 0
        self.replica = -1  # the number of its address in the records
        self.rtt = -1  # the shortest round trip so far, ns; as of when it was connected or last sampled

    # --- opening ---

    def connect(self, family: int, address: tuple[object, ...]) -> None:
        """Start to connect. Never raises: the owner is notified of success or failure."""
        self.connect_started = self.connect_started or now()
        try:
            sock = _new_socket(family)
        except OSError as error:
            self._owner.broken(_open_failure(error))
            return
        self._sock = sock
        self._fd = sock.fileno()
        self.is_open = True
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._reader.clock.kernel_stamps:
            enable_stamps(sock)
        self.receive = sock.recvmsg
        self._send = sock.send
        code = sock.connect_ex(address)
        if code in (0, errno.EINPROGRESS):
            self._loop.add_writer(self._fd, self._connected)
            self.is_writing = True
        else:
            self._owner.broken(_open_failure(OSError(code, os.strerror(code))))

    def _connected(self) -> None:
        self._loop.remove_writer(self._fd)
        self.is_writing = False
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._owner.broken(_open_failure(OSError(code, os.strerror(code))))
            return
        self._reader.watch(self._fd, self)
        self.sample_rtt()
        self._established()

    def _established(self) -> None:
        """Notify the owner that bytes can be exchanged. TLS does its handshake first."""
        self.is_ready = True
        self._owner.established()

    def sample_rtt(self) -> None:
        """Ask the kernel for the round-trip time (under 1 us). Requests that are sent from now on have it in their rows."""
        if self.is_open:
            self.rtt = min_rtt(self._sock)

    # --- writing ---

    def write(self, data: bytes) -> None:
        """Send the bytes now, or as soon as the kernel accepts them."""
        if self.is_writing:
            self._unsent = bytes(self._unsent) + data
            return
        try:
            count = self._send(data)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            self._write_failed(error)
            return
        if count < len(data):
            self._unsent = memoryview(data)[count:]
            self._loop.add_writer(self._fd, self._writable)
            self.is_writing = True

    def _writable(self) -> None:
        try:
            count = self._send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._loop.remove_writer(self._fd)
            self._write_failed(error)
            return
        self._unsent = self._unsent[count:]
        if not self._unsent:
            self._loop.remove_writer(self._fd)
            self.is_writing = False
            self._owner.drained()

    def _write_failed(self, error: OSError) -> None:
        """Notify the owner once everything the server sent before has been read: it may give the reason, or be the response."""
        self.is_writing = True  # for good: nothing more can be written
        self._unsent = b""
        self._loop.call_soon(self._read_remaining, error)

    def _read_remaining(self, error: OSError) -> None:
        if self.is_open:
            self._reader.read_remaining(self._fd, error)

    def read_until(self, instant: int) -> None:
        """Deliver to the owner now what arrived by that instant and is still unread."""
        if self.is_open:
            self._reader.read_until(self._fd, instant)

    def let_wait(self, ending: bytes) -> None:
        """Let bytes wait that do not end with this; empty: none."""
        self.ending = ending

    def deliver(self) -> None:
        """Hand the reads that wait to the owner, which decodes them."""
        pieces, stamps, delay = self.pieces, self.stamps, self.delay
        if not pieces:
            return
        self.pieces, self.stamps, self.delay = [], [], -1
        if pieces[-1]:
            self._received(pieces, stamps, delay)
            return
        count = pieces.index(b"")
        if count:
            self._received(pieces[:count], stamps[:count], delay)
        if self.is_open:
            self._closed(stamps[count])

    def catch_up(self) -> None:
        """Run what has come due in the meantime. Long work on received bytes calls this now and then."""
        self._reader.catch_up()

    def close(self) -> None:
        """Close the socket without notifying the owner."""
        self.is_closed = True
        if self.is_open:
            self.is_open = self.is_ready = False
            self._reader.forget(self._fd)
            if self.is_writing:
                self._loop.remove_writer(self._fd)
                self.is_writing = False
            self._sock.close()


def _new_socket(family: int) -> socket.socket:
    """Return a new socket, or raise OSError if it would use up the client's RESERVED_FILES. The kernel always hands out the lowest
    free descriptor, so its number shows how many files are open."""
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


def connection_lost(error: OSError) -> Fail:
    """Return the failure of what was in flight when an established connection broke."""
    return Fail("reset", "") if isinstance(error, ConnectionError) else Fail("connect_failed", bounded(str(error)))


def out_of_sockets(error: OSError) -> str:
    """Say which limit was reached, and how to get around it."""
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAGAIN):
        return "no free local port (net.ipv4.ip_local_port_range): lower the concurrency, or measure from several addresses"
    if error.errno == errno.ENFILE:
        return "the system's file limit (fs.file-max) is reached: raise it, or lower the concurrency"
    return f"the limit of {file_limit()} open files (ulimit -n) is reached: raise it, use more processes, or lower the load"
