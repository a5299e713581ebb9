"""An HTTP/1.1 connection: a transport, its decoder, and the one request that it carries at a time.

Bytes that cannot end the response wait in the transport until some arrive that may (reader.py): decoding many at once takes half the time.
"""

from collections.abc import Sequence
from typing import Protocol

from inferometer.engine.inflight import Flight, excess, take
from inferometer.engine.transport import Transport
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Fail
from inferometer.wire.failures import bounded

STALE_WITHIN = 500_000_000
"""Nanoseconds after a send within which a close means that the server had closed the idle connection before the request arrived.
A later close means that the server saw the request and closed without a response."""


class Http1ConnectionOwner(Protocol):
    """The pool that a connection reports to (http1_pool.py)."""

    def opened(self, connection: "Http1Connection") -> None:
        """The connection is established and carries no request yet."""

    def ended(self, connection: "Http1Connection", flight: Flight, at: int, event: End | Fail) -> None:
        """The response is complete, or has failed."""

    def stale(self, connection: "Http1Connection", flight: Flight) -> None:
        """The server had closed the connection before the request arrived: send the request again over another one."""

    def closed(self, connection: "Http1Connection", fail: Fail | None) -> None:
        """The connection closed while it carried no request."""


class Http1Connection:
    __slots__ = ("_owner", "_was_idle", "decoder", "flight", "responses", "transport")

    def __init__(self, owner: Http1ConnectionOwner, decoder: Decoder) -> None:
        self._owner = owner
        self.decoder = decoder
        self._was_idle = False  # if so, the server may have closed it without our knowing
        self.transport: Transport  # set by the pool
        self.flight: Flight | None = None
        self.responses = 0

    def established(self) -> None:
        flight = self.flight
        if flight is None:
            self._was_idle = True
            self._owner.opened(self)
        else:
            flight.held += now() - self.transport.connect_started
            self.start(flight)

    def start(self, flight: Flight) -> None:
        """Send a request. The connection carries it until it reports its end to the owner."""
        self.take(flight)
        self.send(flight)

    def take(self, flight: Flight) -> None:
        """Prepare for a request, and carry it from now on."""
        self.flight = flight
        self.decoder.reset()
        flight.attempts += 1
        flight.replica, flight.rtt = self.transport.replica, self.transport.rtt
        flight.bytes_out = len(flight.data)

    def send(self, flight: Flight) -> None:
        flight.sent = now()
        self.transport.write(flight.data)

    def received(self, pieces: Sequence[bytes], stamps: Sequence[int], delay: int) -> None:
        """Process bytes of the response."""
        flight = self.flight
        if flight is None:  # they belong to no request: the server breaks the protocol
            self._close_idle()
            return
        if not flight.first_byte:
            flight.first_byte = stamps[0]
        decoder = self.decoder
        flight.bytes_in += len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if delay > flight.read_delay:
            flight.read_delay = delay
        ending = decoder.feed(pieces, stamps)
        if ending is None:
            self.transport.let_wait(decoder.ending)
            flight.arrivals = decoder.received.arrivals  # for timeouts and the live view
            if flight.bytes_in > flight.check_at:
                take(flight, decoder.received)
                ending = excess(flight)
        if ending is not None:
            self._ended(flight, stamps[-1], ending)

    @property
    def waiting(self) -> Sequence[int]:
        return self.transport.stamps

    def decode_waiting(self) -> None:
        """Decode the bytes that have been read and wait for others."""
        self.transport.deliver()

    def closed(self, at: int) -> None:
        """The server closed, or the connection broke."""
        flight = self.flight
        if self.transport.error is not None:
            self._lost(self.transport.error)
        elif flight is None:
            self._close_idle()
        elif flight.first_byte or not self._return_if_stale(flight):
            self._ended(flight, at, self.decoder.eof())

    def _close_idle(self) -> None:
        self.transport.close()
        self._owner.closed(self, None)

    def _ended(self, flight: Flight, at: int, ending: End | Fail) -> None:
        self.flight = None
        self.transport.let_wait(b"")
        self._was_idle = True
        self.responses += 1
        if not ending.keep_alive or self.transport.is_writing:
            self.transport.close()
        self._report(flight, at, ending)

    def drained(self) -> None:
        """Do nothing: the whole request has reached the kernel."""

    # --- failures ---

    def give_up(self, flight: Flight, code: str, message: str = "") -> None:
        """End the request in flight as a failure, and close the connection."""
        self.decode_waiting()
        if self.flight is flight:  # otherwise its response is complete
            self.broken(Fail(code, message))

    def _lost(self, error: OSError) -> None:
        flight = self.flight
        if flight is not None and not flight.first_byte and self._return_if_stale(flight):
            return
        self.broken(
            Fail("reset", "") if isinstance(error, ConnectionError) else Fail("connect_failed", bounded(str(error)))
        )

    def _return_if_stale(self, flight: Flight) -> bool:
        """If the server closed the idle connection before this request arrived, return the request to the owner to be sent again."""
        if not self._was_idle or flight.attempts > 1 or now() - flight.sent > STALE_WITHIN:
            return False
        self.flight = None
        self.transport.close()
        self._owner.stale(self, flight)
        return True

    def broken(self, fail: Fail) -> None:
        flight, self.flight = self.flight, None
        self.transport.close()
        if flight is None:
            self._owner.closed(self, fail)
        else:
            self._report(flight, now(), fail)

    def _report(self, flight: Flight, at: int, ending: End | Fail) -> None:
        take(flight, self.decoder.received)
        self._owner.ended(self, flight, at, ending)
        if not self.transport.is_open:
            self.decoder.reset()  # garbage is not collected during a run, and the decoder may hold much of a response
