"""TLS for the server: its SSL context, and a transport that encrypts.

OpenSSL reads and writes the socket, a record (16 KiB) at a time, so that large bodies are never in memory twice. Timestamps
still come from the kernel.
"""

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any

from inferometer.errors import UserError
from inferometer.serve.settings import Tls
from inferometer.serve.sockets.transport import NOT_NOW, Data, Transport

if TYPE_CHECKING:
    from inferometer.serve.sockets.listener import Listener


def context(tls: Tls, alpn: str = "http/1.1") -> ssl.SSLContext:
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
