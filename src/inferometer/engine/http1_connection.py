"""HTTP/1.1: a link, its decoder and the one request that it carries at a time.

The hot path is `received`, which lets the decoder say what the bytes mean and notes when they arrived.
"""

from typing import Protocol

from inferometer.engine.inflight import Flight, note
from inferometer.engine.transport import Transport
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Fail
from inferometer.wire.failures import bounded

STALE_WITHIN = 500_000_000
"""ns after a send in which the news must come that the server had closed the connection before. Later than that, it has
looked at the request and closed without an answer."""


class Http1ConnectionOwner(Protocol):
    """Who is told what became of a connection (http1_pool.py)."""

    def opened(self, connection: "Http1Connection") -> None:
        """It is connected and carries nothing yet."""

    def ended(self, connection: "Http1Connection", flight: Flight, at: int, event: End | Fail) -> None:
        """The answer is complete, or failed."""

    def stale(self, connection: "Http1Connection", flight: Flight) -> None:
        """The server had closed it before the request came: send that again elsewhere."""

    def closed(self, connection: "Http1Connection", fail: Fail | None) -> None:
        """It is gone, and carried nothing."""


class Http1Connection:
    __slots__ = ("_kept", "_owner", "answers", "decoder", "flight", "link")

    def __init__(self, owner: Http1ConnectionOwner, decoder: Decoder) -> None:
        self._owner = owner
        self.decoder = decoder
        self._kept = False  # it has been idle: the server may have closed it without our knowing
        self.link: Transport  # set by the pool
        self.flight: Flight | None = None
        self.answers = 0

    def established(self) -> None:
        flight = self.flight
        if flight is None:
            self._kept = True
            self._owner.opened(self)
        else:
            flight.held += now() - self.link.connect_from
            self.start(flight)

    def start(self, flight: Flight) -> None:
        """Send a request; the connection carries it until the owner hears of its end."""
        self.take(flight)
        self.send(flight)

    def take(self, flight: Flight) -> None:
        """Be ready for a request, and carry it from now on."""
        self.flight = flight
        self.decoder.reset()
        flight.attempts += 1
        flight.bytes_out = len(flight.data)

    def send(self, flight: Flight) -> None:
        flight.sent = now()
        self.link.write(flight.data)

    def received(self, data: bytes, at: int, delay: int) -> None:
        """Bytes of the answer as they came; none: the server closed, or the connection broke."""
        flight = self.flight
        if flight is None or not data:
            self._over(flight, data, at)
            return
        if not flight.first_byte:
            flight.first_byte = at
        flight.bytes_in += len(data)
        if delay > flight.read_delay:
            flight.read_delay = delay
        ending = note(flight, self.decoder.feed(data), at)
        if ending is not None:
            self._ended(flight, at, ending)

    def _over(self, flight: Flight | None, data: bytes, at: int) -> None:
        """Nothing more comes, or something that nobody asked for."""
        if not data and self.link.error is not None:
            self.lost(self.link.error)
        elif flight is None:  # the server closes an idle connection, or breaks the protocol
            self.link.shut()
            self._owner.closed(self, None)
        elif flight.first_byte or not self._is_stale(flight):
            ending = note(flight, self.decoder.eof(), at)
            if ending is not None:
                self._ended(flight, at, ending)

    def _ended(self, flight: Flight, at: int, ending: End | Fail) -> None:
        self.flight = None
        self._kept = True
        self.answers += 1
        if not ending.keep_alive or self.link.is_writing:
            self.link.shut()
        self._owner.ended(self, flight, at, ending)

    def drained(self) -> None:
        """The request is with the kernel: nothing to do."""

    # --- trouble ---

    def give_up(self, flight: Flight, code: str, message: str = "") -> None:
        """End the request that it carries as a failure, and close."""
        self.broken(Fail(code, message))

    def lost(self, error: OSError) -> None:
        flight = self.flight
        if flight is not None and not flight.first_byte and self._is_stale(flight):
            return
        self.broken(
            Fail("reset", "") if isinstance(error, ConnectionError) else Fail("connect_failed", bounded(str(error)))
        )

    def _is_stale(self, flight: Flight) -> bool:
        """The server closed it while it was idle, before this request reached it: hand it back to be sent again."""
        if not self._kept or flight.attempts > 1 or now() - flight.sent > STALE_WITHIN:
            return False
        self.flight = None
        self.link.shut()
        self._owner.stale(self, flight)
        return True

    def broken(self, fail: Fail) -> None:
        flight, self.flight = self.flight, None
        self.link.shut()
        if flight is None:
            self._owner.closed(self, fail)
        else:
            self._owner.ended(self, flight, now(), fail)
