"""A transport with TLS, through ssl.MemoryBIO: the bytes, and their time stamps, still come from recvmsg."""

import asyncio
import ssl
from collections.abc import Sequence

from inferometer.engine.reader import Reader
from inferometer.engine.transport import Transport, TransportOwner
from inferometer.types import Fail
from inferometer.wire.failures import tls_reason

_READ_SIZE = 65_536


class TlsTransport(Transport):
    """Does the TLS handshake before the first byte; behaves like a plain transport after that."""

    __slots__ = ("_incoming", "_outgoing", "_tls")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, reader: Reader, owner: TransportOwner, context: ssl.SSLContext, host: str
    ) -> None:
        super().__init__(loop, reader, owner)
        self._received = self._decrypt
        self._closed = self._end
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def let_wait(self, ending: bytes) -> None:
        """Do nothing: encrypted bytes do not show where a response ends."""

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
                self._owner.broken(Fail("tls", tls_reason(error)))
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

    def _end(self, at: int) -> None:
        if self.is_ready:
            self._owner.closed(at)
        else:
            did = "closed" if self.error is None else "reset"
            self._owner.broken(Fail("tls", f"the server {did} the connection during the handshake"))

    def _decrypt(self, pieces: Sequence[bytes], stamps: Sequence[int], delay: int) -> None:
        for data, at in zip(pieces, stamps, strict=True):
            if self.is_open:
                self._decrypt_piece(data, at, delay)

    def _decrypt_piece(self, data: bytes, at: int, delay: int) -> None:
        self._incoming.write(data)
        if not self.is_ready:
            self._handshake()
            if not self.is_ready:
                return
        pieces: list[bytes] = []
        is_over, broken = False, None
        try:
            while piece := self._tls.read(_READ_SIZE):
                pieces.append(piece)
            is_over = True  # the server sent close_notify; it may leave the socket open
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            broken = error
        if pieces:
            self._owner.received((pieces[0] if len(pieces) == 1 else b"".join(pieces),), (at,), delay)
        if is_over and self.is_open:
            self._owner.closed(at)
        elif broken is not None and self.is_open:
            self._owner.broken(Fail("tls", tls_reason(broken)))
