"""TLS for the server, with ssl.MemoryBIO, so that the bytes and their timestamps still come from recvmsg.

After the handshake, everything works as without TLS. What is written is encrypted piece by piece as the kernel accepts it,
so that a large response is never in memory twice.
"""

import contextlib
import socket
import ssl
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from inferometer.errors import UserError
from inferometer.serve.settings import Tls
from inferometer.serve.sockets.transport import READ, Data, Transport
from inferometer.timing.clock import CMSG_SPACE, now

if TYPE_CHECKING:
    from inferometer.serve.sockets.listener import Listener

_ENCRYPTED = 256 * 1024
"""Bytes encrypted at a time."""


def context(tls: Tls, alpn: str = "http/1.1") -> ssl.SSLContext:
    """Create the SSL context from PEM files; raises UserError naming the invalid file. `alpn` is the protocol that is
    negotiated: "http/1.1", or "h2" for gRPC."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols([alpn])
    for path in filter(None, (tls.cert, tls.key, tls.client_ca)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            why, remedy = f"cannot read {path}: {error.strerror}", "choose a PEM file that this user may read"
            raise UserError(why, remedy) from None
    try:
        made.load_cert_chain(tls.cert, tls.key, password=_no_password)
    except ssl.SSLError as error:
        why = f"{tls.cert} and {tls.key} are not a certificate and its private key ({getattr(error, 'reason', '') or error})"
        raise UserError(
            why, "set --tls-cert and --tls-key to PEM files that belong together, without a password"
        ) from None
    if tls.client_ca:
        try:
            made.load_verify_locations(tls.client_ca)
        except ssl.SSLError:
            why = f"{tls.client_ca} does not contain a CA certificate in PEM format"
            raise UserError(why, "set --tls-client-ca to a CA's PEM file") from None
        made.verify_mode = ssl.CERT_REQUIRED
    return made


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted")


class TlsTransport(Transport):
    """A client's socket with TLS."""

    __slots__ = ("_incoming", "_is_ready", "_outgoing", "_plain", "_tls")

    def __init__(self, listener: "Listener", sock: socket.socket, peer: str, context: ssl.SSLContext) -> None:
        super().__init__(listener, sock, peer)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_ready = False
        self._plain: deque[memoryview] = deque()

    # --- in ----------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ, CMSG_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not data:
            self._end()
        elif not self._is_leaving:
            self._incoming.write(data)
            if self._is_ready or self._shake_hands():
                self._decrypt(self._arrived(ancillary))

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError:
            self._flush()  # send the TLS alert with the reason
            self.linger()
            return False
        self._is_ready = True
        self.moved = now()
        self._flush()
        return True

    def _decrypt(self, arrived: int) -> None:
        """Decrypt everything that arrived; the limit for clients that send ahead is in reading the socket, not here."""
        try:
            while not self._is_leaving and not self.closed:
                room = self.protocol.room
                if room is None:
                    data = self._tls.read(READ)
                    count = len(data)
                else:
                    count = self._tls.read(len(room), room)  # type: ignore[assignment]  # with a buffer it is a number
                if not count:
                    self._end()
                    return
                if room is None:
                    self.protocol.received(data, arrived)
                else:
                    self.protocol.filled(count, arrived)
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLZeroReturnError:  # orderly close
            self._end()
        except ssl.SSLError:
            self.close()

    def give_up_if_late(self, idle: int, stalled: int, at: int) -> None:
        """Give up a handshake that is not complete in time, too."""
        if self._is_ready or self._is_leaving:
            super().give_up_if_late(idle, stalled, at)
        elif at - self.moved > stalled:
            self.close()

    # --- out ---------------------------------------------------------------------------------------------------------

    def write(self, data: Data, *more: Data) -> None:
        if self.closed or not self._is_ready:
            return
        for part in (data, *more):
            if len(part):
                self._plain.append(memoryview(part))
                self.unsent += len(part)
        self._encrypt()

    def _encrypt(self) -> None:
        while self._plain and not self._out and not self.closed:
            taken = 0
            while self._plain and taken < _ENCRYPTED:
                part = self._plain.popleft()
                if taken + len(part) > _ENCRYPTED:
                    self._plain.appendleft(part[_ENCRYPTED - taken :])
                    part = part[: _ENCRYPTED - taken]
                self.unsent -= len(part)  # the encrypted bytes are counted while they wait for the kernel
                try:
                    self._tls.write(part)
                except ssl.SSLError:
                    self._plain.clear()
                    self.loop.call_soon(self.close)
                    return
                taken += len(part)
            self._flush()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            super().write(data)

    def _drained(self) -> None:
        self._encrypt()
        if not self.unsent:
            super()._drained()

    def _shut_down(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # it also expects the client's close_notify
            self._tls.unwrap()
        self._flush()
        super()._shut_down()

    def close(self) -> None:
        self._plain.clear()
        super().close()
