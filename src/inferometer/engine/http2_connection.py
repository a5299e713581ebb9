"""HTTP/2: a link that carries many requests at a time, each on a stream of its own.

The hot path is `received`: the codec takes the bytes apart into frames, each stream's answer says what its frames mean, and
all of them have the stamp of the bytes they came in.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

import msgspec

from inferometer.engine.http1_connection import STALE_WITHIN
from inferometer.engine.http1_pool import NEVER
from inferometer.engine.inflight import Flight, note
from inferometer.engine.transport import Transport
from inferometer.timing.clock import now
from inferometer.types import End, Fail, StreamResponse
from inferometer.wire.failures import bounded
from inferometer.wire.http2 import Data, GoAway, Headers, Http2Client, Http2Error, Layout, Reset, code_name

_AT_ONCE = 1 << 20
"""Bytes of bodies handed to the kernel in one go."""


class Http2ConnectionOwner(Protocol):
    """Who is told what became of a channel (http2_pool.py)."""

    def opened(self, channel: "Http2Connection") -> None:
        """The server has said that it speaks HTTP/2."""

    def ended(
        self, channel: "Http2Connection", flight: Flight, at: int, event: End | Fail, answer: StreamResponse
    ) -> None:
        """An answer is complete, or failed."""

    def refused(self, channel: "Http2Connection", flight: Flight) -> None:
        """The server has certainly not looked at it: send it again elsewhere."""

    def has_room_again(self, channel: "Http2Connection") -> None:
        """The server allows more requests at a time than before."""

    def closing(self, channel: "Http2Connection") -> None:
        """It takes no more requests; those under way are still answered."""

    def closed(self, channel: "Http2Connection", fail: Fail | None) -> None:
        """It is gone."""


class StreamCall(msgspec.Struct, gc=False):
    flight: Flight
    answer: StreamResponse


class Http2Connection:
    __slots__ = (
        *("_heard", "_http2", "_is_gone", "_is_opened", "_kept", "_limit", "_outbox", "_owner", "_quiet_from", "_unsent"),
        *("calls", "is_closing", "link"),
    )  # fmt: skip

    def __init__(self, owner: Http2ConnectionOwner) -> None:
        self._owner = owner
        self._http2 = Http2Client()
        self._outbox = self._http2.outbox
        self._limit = self._outbox.max_streams
        self._heard = 0
        self._quiet_from = -1  # what had been heard when it was last idle; -1: it never was
        self._kept = False  # it has been idle: the server may have closed it without our knowing
        self._is_opened = False
        self.is_closing = False
        self._is_gone = False
        self._unsent: list[Flight] = []  # queued, and not yet handed to the kernel
        self.link: Transport  # set by the owner
        self.calls: dict[int, StreamCall] = {}  # in the order of their sending

    @property
    def has_room(self) -> bool:
        return len(self.calls) < self._limit and not self.is_closing

    @property
    def first_sent(self) -> int:
        """When the first of those under way was sent."""
        for call in self.calls.values():
            return call.flight.sent
        return NEVER

    def established(self) -> None:
        self._http2.start()
        self._flush()

    def start(self, flight: Flight, head: bytes, answer: StreamResponse) -> None:
        """Queue a request on a stream of its own; `flush` sends it, with all that are queued by then."""
        flight.attempts += 1
        flight.bytes_out = len(head) + len(flight.data) + 18
        flight.sent = now()
        if not self.calls:
            self._quiet_from = self._heard if self._kept else -1
        self.calls[self._outbox.request(head, flight.data, True)] = StreamCall(flight, answer)
        self._unsent.append(flight)
        if self._outbox.is_closing and not self.is_closing:  # the stream ids have run out
            self._close_soon()

    def flush(self) -> None:
        """Send what was queued: it counts as sent now."""
        unsent = self._unsent
        if unsent:
            at = now()
            for flight in unsent:
                flight.sent = at
            unsent.clear()
        self._flush()

    def _flush(self) -> None:
        link, take = self.link, self._outbox.take
        while not link.is_writing and link.is_open:
            data = take(_AT_ONCE)
            if data:
                link.write(data)
            if len(data) < _AT_ONCE // 2:  # that was all there is
                return

    def drained(self) -> None:
        self._flush()

    # --- what comes back ---

    def received(self, data: bytes, at: int, delay: int) -> None:
        if not data:
            self._ended()
            return
        self._heard += 1
        whole = self._http2.complete_response(data)
        if whole is not None:
            self._hear_whole(*whole, at, delay)
            return
        broken = None
        try:
            events = self._http2.feed(data)
        except Http2Error as error:
            broken, events = error, error.events  # what was said before still holds
        if self._outbox.is_closing and not self.is_closing:  # before any answer lets another request go
            self._close_soon()
        self._hear(events, at, delay)
        if self._outbox.has_more:
            self._flush()
        if broken is not None:
            fail = Fail("malformed_http2", bounded(broken.message))
            self._gone(fail, fail)
            return
        if self._outbox.max_streams != self._limit:
            self._limit = self._outbox.max_streams
            if self._is_opened:
                self._owner.has_room_again(self)
        if not self._is_opened and self._http2.settings_received:
            self._open()
        if self.is_closing and not self.calls:
            self._gone(None, None)

    def _hear_whole(self, stream: int, body: bytes, layout: Layout, at: int, delay: int) -> None:
        """All of an answer at once: what `_hear` does for its three events."""
        call = self.calls.pop(stream)
        flight = call.flight
        flight.first_byte = at
        flight.bytes_in += len(body)
        if delay > flight.read_delay:
            flight.read_delay = delay
        ending = note(flight, call.answer.complete(layout.headers, body, layout.trailers), at)
        assert ending is not None  # the trailers say so
        self._kept = True
        self._owner.ended(self, flight, at, ending, call.answer)
        if self.is_closing and not self.calls:
            self._gone(None, None)

    def _hear(self, events: Sequence[Headers | Data | Reset | GoAway], at: int, delay: int) -> None:
        calls = self.calls
        for event in events:
            kind = event.__class__
            if kind is GoAway:  # that is seen to
                continue
            call = calls.get(event.stream)  # type: ignore[union-attr]
            if call is None:  # given up
                continue
            if kind is Reset:
                self._reset(call, event, at)  # type: ignore[arg-type]
                continue
            flight = call.flight
            if not flight.first_byte:
                flight.first_byte = at
            if delay > flight.read_delay:
                flight.read_delay = delay
            if kind is Data:
                flight.bytes_in += len(event.data)  # type: ignore[union-attr]
                said = call.answer.data(event.data, event.end)  # type: ignore[union-attr]
            else:
                said = call.answer.headers(event.headers, event.end)  # type: ignore[union-attr]
            if said:
                ending = note(flight, said, at)
                if ending is not None:
                    self._answered(event, call, at, ending)  # type: ignore[arg-type]

    def _open(self) -> None:
        """The server's settings are here. One that goes away in the same breath is not open for anything."""
        if self.is_closing:
            fail = Fail("closed", "the server goes away as soon as it is connected to")
            self._gone(fail, fail)
        else:
            self._is_opened = self._kept = True
            self._owner.opened(self)

    def _ended(self) -> None:
        """The server closed, or the connection broke."""
        if self.link.error is not None:
            self.lost(self.link.error)
            return
        try:
            self._http2.eof()
        except Http2Error as error:
            if not self._is_opened:
                fail = Fail("malformed_http2", bounded(error.message))
                self._gone(fail, fail)
                return
        self._gone(Fail("closed", ""), Fail("cut_short", ""))

    def _answered(self, event: Headers | Data, call: StreamCall, at: int, ending: End | Fail) -> None:
        if not event.end:  # a failure that the answer's own content tells
            self._http2.reset(event.stream)
        self._end(event.stream, call, at, ending)

    def _end(self, stream: int, call: StreamCall, at: int, event: End | Fail) -> None:
        del self.calls[stream]
        self._kept = True
        self._owner.ended(self, call.flight, at, event, call.answer)

    def _reset(self, call: StreamCall, reset: Reset, at: int) -> None:
        stream = reset.stream
        if reset.refused and call.flight.attempts == 1 and not call.flight.first_byte:
            del self.calls[stream]
            self._owner.refused(self, call.flight)
        else:
            what = bounded(reset.message or code_name(reset.code))
            self._end(stream, call, at, Fail("stream_reset", what))

    def _close_soon(self) -> None:
        self.is_closing = True
        self._owner.closing(self)

    # --- trouble ---

    def give_up(self, flight: Flight, code: str, message: str = "") -> None:
        """End one request as a failure; the others go on."""
        fail = Fail(code, message)
        if not self.link.is_ready:  # no stream yet
            self.broken(fail)
            return
        for each in self.calls.items():
            if each[1].flight is flight:
                self._cancel([each], fail)
                break

    def expire(self, sent_by: int, fail: Fail) -> None:
        """End the requests that were sent by an instant; the others go on."""
        self._cancel(list(takewhile(lambda each: each[1].flight.sent <= sent_by, self.calls.items())), fail)

    def _cancel(self, calls: Sequence[tuple[int, StreamCall]], fail: Fail) -> None:
        for stream, call in calls:
            self._http2.reset(stream)
            self._end(stream, call, now(), fail)
        self._flush()
        if self.is_closing and not self.calls:
            self._gone(None, None)

    def lost(self, error: OSError) -> None:
        fail = Fail("reset", "") if isinstance(error, ConnectionError) else Fail("connect_failed", bounded(str(error)))
        self._gone(fail, fail)

    def broken(self, fail: Fail) -> None:
        self._gone(fail, fail)

    def _gone(self, unanswered: Fail | None, begun: Fail | None) -> None:
        """It is no more: what it carried has failed, unless the server cannot have seen it."""
        if self._is_gone:
            return
        self._is_gone = self.is_closing = True
        self.link.shut()
        calls, self.calls = self.calls, {}
        was_closed_while_idle = self._quiet_from == self._heard
        at = now()
        for call in calls.values():
            flight = call.flight
            if was_closed_while_idle and flight.attempts == 1 and at - flight.sent <= STALE_WITHIN:
                self._owner.refused(self, flight)
                continue
            fail = begun if flight.first_byte else unanswered
            assert fail is not None  # there is always a reason while something is under way
            self._owner.ended(self, flight, at, fail, call.answer)
        self._owner.closed(self, unanswered)
