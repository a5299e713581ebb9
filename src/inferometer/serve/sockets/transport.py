"""A client's socket on the event loop, with or without TLS, with kernel receive timestamps and one send() per write.

Large parts are received directly into a buffer of the protocol, and sent without a copy. What the kernel does not
accept at once is sent when the socket is writable. `write` never calls back into the protocol: a connection that turns
out to be broken is closed in the next iteration of the loop. With TLS, OpenSSL reads and writes the socket, a record
(16 KiB) at a time, so that large bodies are never in memory twice.

The protocol is an object per connection, made by the listener's `make_protocol(transport)`, with these members:

received(data, arrived)  takes the bytes that the kernel received at `arrived` (monotonic ns)
room, filled(count, arrived)  if `room` is not None, the socket receives directly into it and calls `filled` instead
is_done                  whether nothing but what is written is to be sent, even if the client sends nothing more
drained()                the kernel has accepted everything that was written; not called if it did so at once
lost()                   the connection is closed, by the client or by us; called once
in_flight                whether the server's shutdown has to wait for a request, or for its response to be sent
is_late(silent, idle, stalled)  whether the client, which made no progress for `silent` ns, has exceeded the limit for
                         connections without a request (`idle`) or with an incomplete one (`stalled`)
"""

import contextlib
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from inferometer.errors import UserError
from inferometer.serve.settings import Tls
from inferometer.timing.clock import CMSG_SPACE, now, unpack_stamp

if TYPE_CHECKING:
    from inferometer.serve.sockets.listener import Listener

NOT_NOW = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError
"""A socket raises these when it has nothing to read, or does not accept more."""
READ = 64 * 1024
_JOINED = 16 * 1024
"""Pending parts up to this size are merged by copying; larger ones are kept as they are."""
_AT_ONCE = 64  # parts per sendmsg()
_LINGER_S = 1.0
_RESET = struct.pack("ii", 1, 0)

Data = bytes | bytearray | memoryview


class Transport:
    """A client's socket."""

    __slots__ = (
        "_is_leaving", "_listener", "_out", "_send", "_sock", "closed", "is_reading", "loop", "moved", "peer", "protocol",
        "unsent",
    )  # fmt: skip

    protocol: Any

    def __init__(self, listener: "Listener", sock: socket.socket, peer: str = "") -> None:
        self.closed = False
        self.is_reading = True
        self.loop = listener.loop
        self.moved = now()
        """When the client last made progress: it read what was sent, or something expected has arrived. (Not the
        kernel's timestamp, which follows steps of the wall clock.)"""
        self.peer = peer  # for the access log
        self.unsent = 0  # bytes that the kernel has not accepted yet
        self._sock, self._send = sock, sock.send
        self._listener = listener
        self._out: deque[bytearray | memoryview] = deque()
        self._is_leaving = False  # the last response is written; further input is ignored
        self.loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        protocol = self.protocol
        room = protocol.room
        try:
            if room is None:
                data, ancillary, _, _ = self._sock.recvmsg(READ, CMSG_SPACE)
                count = len(data)
            else:
                count, ancillary, _, _ = self._sock.recvmsg_into([room], CMSG_SPACE)
        except NOT_NOW:
            return
        except OSError:
            self.close()
            return
        if not count and self.unsent and protocol.is_done:  # the client may have closed only its sending side
            self.pause_reading()
            self.linger()
        elif not count:
            self.close()
        elif self._is_leaving:
            return
        elif room is None:
            protocol.received(data, self._arrived(ancillary))
        else:
            protocol.filled(count, self._arrived(ancillary))

    def _arrived(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        if not ancillary:
            return now()
        seconds, nanoseconds = unpack_stamp(ancillary[0][2])
        return int(seconds * 1_000_000_000 + nanoseconds - self._listener.wall_offset)

    def pause_reading(self) -> None:
        self.is_reading = False
        self.loop.remove_reader(self._sock)

    def resume_reading(self) -> None:
        if not (self.is_reading or self.closed):
            self.is_reading = True
            self._watch(self.loop.add_reader, self._readable)

    def _watch(self, add: Callable[..., object], callback: Callable[[], None]) -> None:
        """Call back when the socket is ready. uvloop refuses to watch one whose reset it has already seen."""
        try:
            add(self._sock, callback)
        except RuntimeError:
            self.loop.call_soon(self.close)

    def write(self, data: Data, *more: Data) -> None:
        """Send the parts in order. Large ones are kept without a copy: do not modify them afterwards."""
        if more or self._out:
            self._write_all(data, *more)
            return
        try:
            sent = self._send(data)
        except NOT_NOW:
            sent = 0
        except OSError:
            self.loop.call_soon(self.close)
            return
        if sent < len(data):
            self._write_all(memoryview(data)[sent:])

    def _write_all(self, *parts: Data) -> None:
        if self.closed:
            return
        out, is_first = self._out, not self._out
        for part in parts:
            self.unsent += len(part)
            if len(part) > _JOINED:
                out.append(memoryview(part))
            elif out and isinstance(out[-1], bytearray):
                out[-1] += part
            elif part:
                out.append(bytearray(part))
        if is_first:
            self.moved = now()
            self._send_some()
            if out:
                self._watch(self.loop.add_writer, self._writable)

    def _send_some(self) -> None:
        out = self._out
        try:
            sent = self._sock.sendmsg(list(islice(out, _AT_ONCE)))
        except NOT_NOW:
            return
        except OSError:
            self.loop.call_soon(self.close)
            return
        self.unsent -= sent
        self.moved = now()
        while sent:
            first = out[0]
            if len(first) > sent:
                out[0] = memoryview(first)[sent:]
                break
            sent -= len(first)
            out.popleft()

    def _writable(self) -> None:
        self._send_some()
        if not self._out:
            self.loop.remove_writer(self._sock)
            if self._is_leaving:
                self._shut_down()
            else:
                self.protocol.drained()

    def close_if_late(self, idle: int, stalled: int, at: int) -> None:
        """Close if it is the client's turn and it made no progress for this many ns as of `at`, or if it has reset the
        connection: uvloop reports that once, there may still be something to read by then, and OpenSSL ignores it at
        the end of a handshake."""
        silent = at - self.moved
        try:
            self._sock.getpeername()
        except OSError:
            self.close()
            return
        if self.unsent:
            if silent > stalled:
                self.reset()  # so that the kernel drops its copy of what was sent
        elif self.protocol.is_late(silent, idle, stalled):
            self.close()

    def linger(self) -> None:
        """Close our side when everything is sent, and the rest when the client does or after a second: closing with
        unread bytes would discard what the client has not read yet. Further input is ignored."""
        self._is_leaving = True
        if not (self.unsent or self.closed):
            self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self.loop.call_later(_LINGER_S, self.close)

    def close(self) -> None:
        """Close at once in an orderly way, even if not everything is sent."""
        if self.closed:
            return
        self.closed = True
        self.loop.remove_reader(self._sock)
        self.loop.remove_writer(self._sock)
        self._sock.close()
        self._out.clear()
        self._listener.transports.discard(self)
        self.protocol.lost()
        del self.protocol  # break the reference cycle

    def reset(self) -> None:
        """Close with RST, discarding unsent data."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.close()


class TlsSocket(ssl.SSLSocket):
    """A TLS connection with the methods of a plain socket that Transport uses."""

    _ancillary: Any

    def recvmsg(self, size: int, space: int) -> Any:  # type: ignore[override]
        self._peek(space)
        return self.recv(size), self._ancillary, 0, None

    def recvmsg_into(self, buffers: list[memoryview], space: int) -> Any:  # type: ignore[override]
        self._peek(space)
        return self.recv_into(buffers[0]), self._ancillary, 0, None

    def _peek(self, space: int) -> None:
        """Take the timestamp of what OpenSSL reads next. What is decrypted already has that of its record."""
        if not self.pending():
            self._ancillary = socket.socket.recvmsg(self, 1, space, socket.MSG_PEEK)[1]

    def sendmsg(self, parts: list[memoryview]) -> int:  # type: ignore[override]
        return self.send(parts[0])


class TlsTransport(Transport):
    """A client's socket with TLS."""

    __slots__ = ("_is_ready",)

    _sock: TlsSocket

    def __init__(self, listener: "Listener", sock: socket.socket, peer: str, context: ssl.SSLContext) -> None:
        super().__init__(listener, context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), peer)
        self._is_ready = False

    def _readable(self) -> None:
        if self._is_ready or self._is_leaving:
            super()._readable()
            while not self.closed and self._sock.pending():  # decrypted: the socket does not become readable again
                super()._readable()
            return
        try:
            self._sock.do_handshake()
            self._is_ready = True
        except NOT_NOW:
            return
        except OSError:
            self.linger()  # OpenSSL has sent a TLS alert with the reason

    def write(self, data: Data, *more: Data) -> None:
        if self._is_ready:
            super().write(data, *more)

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # it also expects the client's close_notify
            self._sock.unwrap()
        super()._shut_down()


def tls_context(tls: Tls, alpn: str = "http/1.1") -> ssl.SSLContext:
    """Create the SSL context from PEM files; raises UserError naming the invalid file. `alpn` is the protocol that is
    negotiated: "http/1.1", or "h2" for gRPC."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.sslsocket_class = TlsSocket
    made.set_alpn_protocols([alpn])
    files = f"{tls.cert} and {tls.key} as certificate and private key"
    try:
        made.load_cert_chain(tls.cert, tls.key, password="")
        if tls.client_ca:
            files = f"{tls.client_ca} as CA certificate"
            made.load_verify_locations(tls.client_ca)
            made.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # also ssl.SSLError
        remedy = "use readable PEM files, and a certificate with its own private key, which must have no password"
        raise UserError(f"cannot use {files}: {error}", remedy) from None
    return made
