"""A socket, its decoder and the request it carries.

The hot path is `_readable`, which takes the bytes and their stamp, and `received`, which lets the decoder say what they mean
and notes when it arrived. Everything that follows happens after the stamps were taken and cannot change them.
"""

import asyncio
import errno
import socket
import weakref
from typing import Protocol

from inferometer.engine.flight import Flight
from inferometer.engine.inbox import Inbox
from inferometer.records import COUNTED_BY
from inferometer.timing.clock import CMSG_SPACE, ask_for_stamps, now, unpack_stamp
from inferometer.types import Decoder, End, Fail, Tokens, Usage
from inferometer.wire.failures import bounded

_READ = 65_536
COUNTED_BY_SERVER = COUNTED_BY.index("server")
_OUT_OF_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN)


class Clock:
    """The wall clock's offset to the monotonic one, kept up to date by health.py; stamps: whether the kernel takes them."""

    __slots__ = ("kernel_stamps", "offset")

    def __init__(self, offset: int, kernel_stamps: bool) -> None:
        self.offset = offset
        self.kernel_stamps = kernel_stamps


class Owner(Protocol):
    """Who is told what became of a connection (pool.py)."""

    def opened(self, connection: "Connection") -> None:
        """It is connected and carries nothing yet."""

    def ended(self, connection: "Connection", flight: Flight, at: int, event: End | Fail) -> None:
        """The answer is complete, or failed."""

    def stale(self, connection: "Connection", flight: Flight) -> None:
        """The server had closed it before the request came: send that again elsewhere."""

    def closed(self, connection: "Connection", fail: Fail | None) -> None:
        """It is gone, and carried nothing."""


class Connection:
    __slots__ = (
        "_clock",
        "_decoder",
        "_error",
        "_fd",
        "_inbox",
        "_kept",
        "_loop",
        "_out",
        "_owner",
        "_reader",
        "_recvmsg",
        "_send",
        "_sock",
        "_writing",
        "answers",
        "connect_from",
        "flight",
        "is_open",
        "is_ready",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: Owner, clock: Clock, inbox: Inbox, decoder: Decoder
    ) -> None:
        self._loop = loop
        self._owner = owner
        self._clock = clock
        self._inbox = inbox
        self._error: OSError | None = None  # what ended the reading, where it was not the server's close
        self._decoder = decoder
        self._out: memoryview | bytes = b""  # what the kernel would not take yet
        self._writing = False
        self._reader: weakref.ref[object] | None = None
        self.flight: Flight | None = None
        self.answers = 0
        self._kept = False  # it has been idle: the server may have closed it without our knowing
        self.is_open = False  # has a socket
        self.is_ready = False  # connected, and TLS done
        self.connect_from = 0

    @property
    def text(self) -> str:
        """The text of the answer that just ended."""
        return self._decoder.text

    @property
    def status(self) -> int:
        return self._decoder.status

    # --- opening ---

    def connect(self, family: int, address: tuple[object, ...], flight: Flight | None) -> None:
        """Open, and then send `flight` if there is one. Never raises: the owner hears what became of it."""
        self.flight = flight
        self.connect_from = now()
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._fail(_open_failure(error))
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
            self._writing = True
        else:
            self._fail(_open_failure(OSError(code, errno.errorcode.get(code, ""))))

    def _connected(self) -> None:
        self._loop.remove_writer(self._fd)
        self._writing = False
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(_open_failure(OSError(code, errno.errorcode.get(code, ""))))
            return
        self._read_on()
        self._established()

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
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Read up to the error, or to the end."""
        while self.is_open and self._has_bytes():
            self._readable()
        if self.is_open:
            self._unreadable(ConnectionResetError())

    def _has_bytes(self) -> bool:
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _established(self) -> None:
        """Bytes can be exchanged. (TLS has its handshake first.)"""
        self.is_ready = True
        flight = self.flight
        if flight is None:
            self._kept = True
            self._owner.opened(self)
        else:
            flight.held += now() - self.connect_from
            self.start(flight)

    # --- one request ---

    def start(self, flight: Flight) -> None:
        """Send a request; the connection carries it until the owner hears of its end."""
        self.flight = flight
        self._decoder.reset()
        flight.attempts += 1
        flight.bytes_out = len(flight.data)
        flight.sent = now()
        self._write(flight.data)

    def _write(self, data: bytes) -> None:
        try:
            count = self._send(data)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            self._lost(error)
            return
        if count < len(data):
            self._out = memoryview(data)[count:]
            self._loop.add_writer(self._fd, self._writable)
            self._writing = True

    def _writable(self) -> None:
        try:
            count = self._send(self._out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        self._out = self._out[count:]
        if not self._out:
            self._loop.remove_writer(self._fd)
            self._writing = False

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
        self._error = error
        self._inbox.put(self, b"", now(), -1)

    def received(self, data: bytes, at: int, delay: int) -> None:
        """Bytes of the answer as they came; none: the server closed, or the connection broke."""
        if self._error is not None and not data:
            self._lost(self._error)
            return
        flight = self.flight
        if flight is None:  # nothing was asked: the server closes an idle connection, or breaks the protocol
            self._shut()
            self._owner.closed(self, None)
            return
        if data:
            if not flight.first_byte:
                flight.first_byte = at
            flight.bytes_in += len(data)
            if delay > flight.read_delay:
                flight.read_delay = delay
            events = self._decoder.feed(data)
        elif not flight.first_byte and self._is_stale(flight):
            return
        else:
            events = self._decoder.eof()
        for event in events:
            kind = event.__class__
            if kind is Tokens:
                flight.arrivals.append(at)
                flight.counts.append(event.n)  # type: ignore[union-attr]
            elif kind is Usage:
                _count(flight, event)  # type: ignore[arg-type]
            else:
                self.flight = None
                self._kept = True
                self.answers += 1
                if not event.keep_alive or self._writing:  # type: ignore[union-attr]
                    self._shut()
                self._owner.ended(self, flight, at, event)  # type: ignore[arg-type]
                return

    # --- trouble ---

    def give_up(self, code: str, message: str = "") -> None:
        """End the request that it carries, if any, as a failure, and close."""
        self._fail(Fail(code, message))

    def _lost(self, error: OSError) -> None:
        flight = self.flight
        if flight is not None and not flight.first_byte and self._is_stale(flight):
            return
        self._fail(
            Fail("reset", "") if isinstance(error, ConnectionError) else Fail("connect_failed", bounded(str(error)))
        )

    def _is_stale(self, flight: Flight) -> bool:
        """The server closed it while it was idle, before this request reached it: hand it back to be sent again."""
        if not self._kept or flight.attempts > 1:
            return False
        self.flight = None
        self._shut()
        self._owner.stale(self, flight)
        return True

    def _fail(self, fail: Fail) -> None:
        flight, self.flight = self.flight, None
        self._shut()
        if flight is None:
            self._owner.closed(self, fail)
        else:
            self._owner.ended(self, flight, now(), fail)

    def close(self) -> None:
        """Close an idle connection; nobody is told."""
        self._shut()

    def _shut(self) -> None:
        if self.is_open:
            self.is_open = self.is_ready = False
            self._reader = None
            self._loop.remove_reader(self._fd)
            if self._writing:
                self._loop.remove_writer(self._fd)
                self._writing = False
            self._sock.close()


def _count(flight: Flight, usage: Usage) -> None:
    """The server's own counts."""
    if usage.n_in >= 0:
        flight.n_in = usage.n_in
    if usage.n_out >= 0:
        flight.n_out = usage.n_out
        flight.counted_by = COUNTED_BY_SERVER
    flight.cached = usage.cached
    flight.reasoning = usage.reasoning


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
    return "this process's limit of open files (ulimit -n) is reached: raise it, use more processes, or lower the concurrency"
