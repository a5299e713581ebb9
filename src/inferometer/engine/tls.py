"""A connection through TLS: ssl.MemoryBIO, so that the bytes, and their stamps, still come from recvmsg."""

import asyncio
import ssl

from inferometer.engine.connection import Clock, Connection, Owner
from inferometer.engine.inbox import Inbox
from inferometer.types import Decoder, Fail
from inferometer.wire.failures import bounded

_READ = 65_536


class TlsConnection(Connection):
    """A handshake before the first request; then the same as without."""

    __slots__ = ("_incoming", "_outgoing", "_tls")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        clock: Clock,
        inbox: Inbox,
        decoder: Decoder,
        context: ssl.SSLContext,
        name: str,
    ) -> None:
        super().__init__(loop, owner, clock, inbox, decoder)
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
                self._fail(Fail("tls", tls_reason(error)))
            return
        self._flush()
        if self.is_open:
            super()._established()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._writing:
            self._out = bytes(self._out) + data
        elif data:
            super()._write(data)

    def _write(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def received(self, data: bytes, at: int, delay: int) -> None:
        if not data:
            if self.is_ready or self._error is not None:
                super().received(b"", at, delay)
            else:
                self._fail(Fail("tls", "the server closed during the handshake"))
            return
        self._incoming.write(data)
        if not self.is_ready:
            self._handshake()
            if not self.is_ready:
                return
        plain = b""
        try:
            while piece := self._tls.read(_READ):
                plain += piece
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._plain(plain, at, delay)
            if self.is_open:
                super().received(b"", at, delay)
            return
        except ssl.SSLError as error:
            self._fail(Fail("tls", tls_reason(error)))
            return
        self._plain(plain, at, delay)

    def _plain(self, plain: bytes, at: int, delay: int) -> None:
        if plain:
            super().received(plain, at, delay)


def tls_reason(error: ssl.SSLError) -> str:
    """What is wrong with a handshake, without OpenSSL's source positions."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return bounded(f"the server's certificate is not accepted: {error.verify_message}")
    return bounded((error.reason or str(error)).replace("_", " ").lower())
