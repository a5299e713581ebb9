"""A link through TLS: ssl.MemoryBIO, so that the bytes, and their stamps, still come from recvmsg."""

import asyncio
import ssl

from inferometer.engine.reader import Reader
from inferometer.engine.transport import Transport, User
from inferometer.types import Fail
from inferometer.wire.failures import tls_reason

_READ = 65_536


class TlsTransport(Transport):
    """A handshake before the first byte; then the same as without."""

    __slots__ = ("_incoming", "_outgoing", "_tls")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, inbox: Reader, user: User, context: ssl.SSLContext, name: str
    ) -> None:
        super().__init__(loop, inbox, user)
        self.deliver = self._decrypt
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)

    def _established(self) -> None:
        self._handshake()

    def _handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()
            if self.is_open:
                self._user.broken(Fail("tls", tls_reason(error)))
            return
        self._flush()
        if self.is_open:
            super()._established()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            super().write(data)

    def write(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def _decrypt(self, data: bytes, at: int, delay: int) -> None:
        if not data:
            if self.is_ready:
                self._user.received(b"", at, delay)
            else:
                did = "closed" if self.error is None else "reset"
                self._user.broken(Fail("tls", f"the server {did} the connection during the handshake"))
            return
        self._incoming.write(data)
        if not self.is_ready:
            self._handshake()
            if not self.is_ready:
                return
        pieces: list[bytes] = []
        is_over, broken = False, None
        try:
            while piece := self._tls.read(_READ):
                pieces.append(piece)
            is_over = True  # the server said that nothing follows; it may leave the socket open
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            broken = error
        if pieces:
            self._user.received(pieces[0] if len(pieces) == 1 else b"".join(pieces), at, delay)
        if is_over and self.is_open:
            self._user.received(b"", at, delay)
        elif broken is not None and self.is_open:
            self._user.broken(Fail("tls", tls_reason(broken)))
