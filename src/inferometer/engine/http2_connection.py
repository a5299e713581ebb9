"""An HTTP/2 connection: a transport that carries many requests at a time, each on a stream of its own.

The hot path is `received`: the codec splits the bytes into frames, each stream's response interprets its own frames, and all of
them get the stamp of the bytes they arrived in.

If streams are persistent, the connection has one stream, which stays open between requests and carries one at a time.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, cast

import msgspec

from inferometer.engine.connector import NEVER, STALE_WITHIN
from inferometer.engine.inflight import TOO_LARGE, Flight, apply_events, excess
from inferometer.engine.transport import Transport, connection_lost
from inferometer.timing.clock import now
from inferometer.types import End, Fail, PersistentResponse, StreamResponse
from inferometer.wire.failures import bounded
from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.events import Data, Event, GoAway, Headers, Http2Error, Reset, Response
from inferometer.wire.http2.frames import code_name

if TYPE_CHECKING:
    from inferometer.engine.http2_pool import Http2Pool

_MAX_WRITE = 1 << 20
"""Maximum bytes of bodies handed to the kernel in one go."""
_CATCH_UP_EVERY = 4
"""Events after which requests that have come due are sent (reader.py): one read may have the responses of many calls."""


class StreamCall(msgspec.Struct, gc=False):
    flight: Flight
    response: StreamResponse


class Http2Connection:
    __slots__ = (
        *("_http2", "_is_closed", "_is_opened", "_is_persistent", "_limit", "_max_streams", "_persistent", "_pool"),
        *("_reads", "_reads_when_idle", "_requests_left", "_stream", "_was_idle", "calls", "is_closing", "transport", "unsent"),
    )  # fmt: skip
    waiting: Sequence[int] = ()
    """Nothing waits to be decoded: frames are decoded as soon as they are read."""

    def __init__(self, pool: "Http2Pool", max_requests: int = 0, is_persistent: bool = False) -> None:
        """`max_requests`: the number of requests after which the connection takes no more, and closes after their responses.
        `is_persistent`: it has one stream, which stays open between requests, and carries one request at a time."""
        self._pool = pool
        self._is_persistent = is_persistent
        self._requests_left = max_requests or NEVER
        self._http2 = Http2Client()
        self._max_streams = self._http2.max_streams
        self._limit = min(self._max_streams, 1) if is_persistent else self._max_streams
        self._stream = 0  # the stream that stays open between requests; 0: there is none
        self._persistent: PersistentResponse | None = None  # what interprets its frames
        self._reads = 0
        self._reads_when_idle = -1  # the value of `_reads` when the connection was last idle; -1: it never was
        self._was_idle = False  # if so, the server may have closed it without our knowing
        self._is_opened = False
        self.is_closing = False
        self._is_closed = False
        self.unsent: list[Flight] = []  # queued, and not yet handed to the kernel
        self.transport: Transport  # set by the pool
        self.calls: dict[int, StreamCall] = {}  # by stream, in the order of sending

    @property
    def has_room(self) -> bool:
        return len(self.calls) < self._limit and not self.is_closing

    @property
    def first_sent(self) -> int:
        """When the oldest request in flight was sent."""
        for call in self.calls.values():
            return call.flight.sent
        return NEVER

    def established(self) -> None:
        self._http2.start()
        self._flush()

    def start(self, flight: Flight, head: bytes, new_response: Callable[[], StreamResponse]) -> None:
        """Queue a request, which `flush` sends together with all others in the queue: on a stream of its own, or on the one that stays
        open."""
        http2, stream, data = self._http2, self._stream, flight.data
        if self._is_persistent:
            if not stream:
                self._persistent = cast(PersistentResponse, new_response())
            assert self._persistent is not None
            response: StreamResponse = self._persistent
            data = self._persistent.request(flight.id, data)
        else:
            response = new_response()
        flight.attempts += 1
        flight.replica, flight.rtt = self.transport.replica, self.transport.rtt
        flight.bytes_out = len(data) + 9 + (0 if stream else len(head) + 9)
        flight.sent = now()
        if not self.calls:
            self._reads_when_idle = self._reads if self._was_idle else -1
        if stream:
            http2.send(stream, data)
        else:
            stream = http2.request(head, data, not self._is_persistent)
            self._stream = stream if self._is_persistent else 0
        self.calls[stream] = StreamCall(flight, response)
        self.unsent.append(flight)
        self._requests_left -= 1
        # `is_closing`: the stream ids have run out
        if (http2.is_closing or not self._requests_left) and not self.is_closing:
            self._start_closing()

    def end_stream(self) -> None:
        """End the stream that stays open, so that the server does not take it for cancelled."""
        if self._stream and not self.calls and self.transport.is_ready:
            self._http2.send(self._stream, b"", end=True)
            self._stream = 0
            self._flush()

    def flush(self) -> None:
        """Send what was queued: it counts as sent now."""
        unsent = self.unsent
        if unsent:
            at = now()
            for flight in unsent:
                flight.sent = at
            unsent.clear()
        self._flush()

    def _flush(self) -> None:
        transport, take = self.transport, self._http2.take
        while not transport.is_writing and transport.is_open:
            data = take(_MAX_WRITE)
            if data:
                transport.write(data)
            if len(data) < _MAX_WRITE // 2:  # there is no more
                return

    def drained(self) -> None:
        self._flush()

    # --- responses ---

    def received(self, pieces: Sequence[bytes], stamps: Sequence[int], delay: int) -> None:
        for data, at in zip(pieces, stamps, strict=True):
            if self.transport.is_open:
                self._feed(data, at, delay)

    def _feed(self, data: bytes, at: int, delay: int) -> None:
        self._reads += 1
        broken = None
        try:
            events = self._http2.feed(data)
        except Http2Error as error:
            broken, events = error, error.events  # the frames before the error still count
        http2 = self._http2
        if http2.is_closing and not self.is_closing:  # before the end of a call lets another request be sent here
            self._start_closing()
        self._handle_events(events, at, delay)
        if http2.has_more:
            self._flush()
        if broken is not None:
            self.broken(Fail("malformed_http2", bounded(broken.message)))
            return
        if http2.max_streams != self._max_streams:
            self._max_streams = http2.max_streams
            self._limit = min(self._max_streams, 1) if self._is_persistent else self._max_streams
            if self._is_opened:
                self._pool.has_room_again(self)
        if not self._is_opened and self._http2.settings_received:
            self._open()
        if self.is_closing and not self.calls:
            self.broken()

    def _handle_events(self, events: Sequence[Event], at: int, delay: int) -> None:
        calls = self.calls
        for number, event in enumerate(events, 1):
            if not number % _CATCH_UP_EVERY:
                self.transport.catch_up()
            kind = event.__class__
            if kind is GoAway:  # handled already, by `_start_closing`
                continue
            stream = event.stream  # type: ignore[union-attr]
            call = calls.get(stream)
            if call is None:  # given up, or the stream that stays open has no request
                if stream == self._stream:
                    self._handle_between_requests(event)  # type: ignore[arg-type]
                continue
            if kind is Reset:
                self._reset(call, event, at)  # type: ignore[arg-type]
                continue
            flight, response = call.flight, call.response
            if not flight.first_byte:
                flight.first_byte = at
            if delay > flight.read_delay:
                flight.read_delay = delay
            if kind is Response:
                flight.bytes_in += len(event.data)  # type: ignore[union-attr]
                decoded = response.complete(event.headers, event.data, event.trailers)  # type: ignore[union-attr]
                ending = decoded[0] if len(decoded) == 1 else apply_events(flight, decoded, at)
                self._end(stream, call, at, ending)  # type: ignore[arg-type]  # there are always trailers, which end it
            else:
                self._handle_frame(event, call, at)  # type: ignore[arg-type]

    def _handle_frame(self, event: Headers | Data, call: StreamCall, at: int) -> None:
        flight = call.flight
        if isinstance(event, Data):
            flight.bytes_in += len(event.data)
            decoded = call.response.data(event.data, event.end)
        else:
            decoded = call.response.headers(event.headers, event.end)
        ending = apply_events(flight, decoded, at) if decoded else None
        if ending is None and flight.bytes_in > flight.check_at:
            ending = excess(flight)
        if ending is None:
            return
        is_excess = isinstance(ending, Fail) and ending.code == TOO_LARGE
        if event.end or is_excess or (self._persistent is not None and not self._persistent.is_usable):
            self._stream = 0
        if not event.end and not self._stream:  # a failure that the content reports, while the stream is still open
            self._http2.reset(event.stream)
        self._end(event.stream, call, at, ending)

    def _handle_between_requests(self, event: Headers | Data | Reset) -> None:
        """Handle what arrives on the stream that stays open while it has no request: usually its end."""
        assert self._persistent is not None
        if isinstance(event, Reset) or event.end:
            self._stream = 0
        elif isinstance(event, Data):
            self._persistent.data(event.data, False)
        else:
            self._persistent.headers(event.headers, False)

    def _open(self) -> None:
        """Report the connection as open: the server's settings are here. If the server sent GOAWAY with them, it is not."""
        if self.is_closing:
            self.broken(Fail("closed", "the server sent GOAWAY as soon as the connection was established"))
        else:
            self._is_opened = self._was_idle = True
            self._pool.opened(self)

    def closed(self, at: int) -> None:
        """The server closed, or the connection broke."""
        if self.transport.error is not None:
            self.broken(connection_lost(self.transport.error))
            return
        try:
            self._http2.eof()
        except Http2Error as error:
            if not self._is_opened:
                self.broken(Fail("malformed_http2", bounded(error.message)))
                return
        self.broken(Fail("closed", ""), Fail("cut_short", ""))

    def _end(self, stream: int, call: StreamCall, at: int, event: End | Fail) -> None:
        del self.calls[stream]
        self._was_idle = True
        self._pool.ended(self, call.flight, at, event, call.response)

    def _reset(self, call: StreamCall, reset: Reset, at: int) -> None:
        stream = reset.stream
        if stream == self._stream:
            self._stream = 0
        if reset.refused and call.flight.attempts == 1 and not call.flight.first_byte:
            del self.calls[stream]
            self._pool.refused(call.flight)
        else:
            message = bounded(reset.message or code_name(reset.code))
            self._end(stream, call, at, Fail("stream_reset", message))

    def _start_closing(self) -> None:
        self.is_closing = True
        self._pool.closing(self)

    # --- failures ---

    def decode_waiting(self) -> None:
        """Do nothing."""

    def give_up(self, flight: Flight, code: str, message: str = "") -> None:
        """End one request as a failure; the others continue."""
        fail = Fail(code, message)
        if not self.transport.is_ready:  # there are no streams yet
            self.broken(fail)
            return
        for each in self.calls.items():
            if each[1].flight is flight:
                self._cancel([each], fail)
                break

    def expire(self, sent_by: int, fail: Fail) -> None:
        """End the requests that were sent at or before an instant; the others continue."""
        self._cancel(list(takewhile(lambda each: each[1].flight.sent <= sent_by, self.calls.items())), fail)

    def _cancel(self, calls: Sequence[tuple[int, StreamCall]], fail: Fail) -> None:
        for stream, call in calls:
            self._http2.reset(stream)
            if stream == self._stream:
                self._stream = 0
            self._end(stream, call, now(), fail)
        self._flush()
        if self.is_closing and not self.calls:
            self.broken()

    def broken(self, fail: Fail | None = None, during_response: Fail | None = None) -> None:
        """Close the connection. Requests in flight fail, those whose response had begun with another failure if there is one, unless the
        server cannot have seen them: those are sent again."""
        if self._is_closed:
            return
        self._is_closed = self.is_closing = True
        self.transport.close()
        calls, self.calls = self.calls, {}
        was_closed_while_idle = self._reads_when_idle == self._reads
        at = now()
        for call in calls.values():
            flight = call.flight
            if was_closed_while_idle and flight.attempts == 1 and at - flight.sent <= STALE_WITHIN:
                self._pool.refused(flight)
                continue
            reason = (during_response or fail) if flight.first_byte else fail
            assert reason is not None  # there is always a reason while requests are in flight
            self._pool.ended(self, flight, at, reason, call.response)
        self._pool.closed(self, fail)
