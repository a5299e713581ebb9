"""The HTTP/2 channels to one base URL. A request goes over one that is idle, else over one that has room, else over a new one.

An idle one first, because the kernel has one stamp for all that lies in a socket: answers that share a channel and come at
the same time get the stamp of the last of them. A deadline is kept by that stamp, too: after it the channel is read before a
call is given up, so that an answer that came in time is one. Only where the client stood still past the deadline, and more came
over the channel meanwhile, is its own stamp lost, and it counts as late.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from inferometer.engine.connector import AT_ONCE, Connector, Countdown
from inferometer.engine.http1_pool import NEVER, Connection, OnEnded
from inferometer.engine.http2_connection import Http2Connection
from inferometer.engine.inflight import Flight
from inferometer.timing.clock import now
from inferometer.types import End, Fail, StreamResponse
from inferometer.units import NS
from inferometer.wire.grpc import deadline_passed

_BEFORE_OPEN = {
    "closed": "the server closed the connection before it was ready for a request",
    "reset": "the server reset the connection before it was ready for a request",
}
"""A server that stops leaves such: the kernel goes on connecting to it until nobody listens any more."""


class Http2Pool:
    def __init__(
        self, dial: Connector, head: bytes, answer: Callable[[], StreamResponse], on_ended: OnEnded, deadline: float = 0
    ) -> None:
        """`deadline`: seconds from a call's sending in which its answer has to be complete; 0: none."""
        self._dial = dial
        self._head = head
        self._answer = answer
        self._on_ended = on_ended
        self._deadline = int(deadline * NS)
        self._late = deadline_passed(deadline)
        self._begun = Countdown(dial.loop)
        self._ready: list[Http2Connection] = []
        self._idle: list[Http2Connection] = []  # of those; the last used is the first to be used again
        self._turn = 0
        self._dirty: list[Http2Connection] = []  # with requests that are queued and not yet sent
        self._opening: set[Http2Connection] = set()
        self._closing: set[Http2Connection] = set()
        self._waiting: deque[tuple[Flight, int]] = deque()  # for a channel with room, and since when
        self._refused: deque[tuple[Flight, int]] = deque()  # for a new one: a server at its limit refuses again

    # --- before t=0 ---

    async def open(self, count: int, patience: float) -> Fail | None:
        for first in range(0, count, AT_ONCE):
            failed = await self._begun.all(min(AT_ONCE, count - first), self._open, patience)
            if failed is not None:
                return failed
        return None

    async def warm(self, request: bytes, patience: float) -> Fail | None:
        """Nothing to do: a channel counts as open when settings have been exchanged over it."""
        return None

    # --- the run ---

    def carry(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            self._carry(flight)

    def _carry(self, flight: Flight) -> None:
        """Send it over a channel that is idle, over the next that has room, or over a new one."""
        idle = self._idle
        while idle:
            channel = idle.pop()
            if not channel.calls and channel.has_room:
                self._start(channel, flight)
                return
        ready = self._ready
        for _ in ready:
            self._turn = turn = (self._turn + 1) % len(ready)
            channel = ready[turn]
            if channel.has_room:
                self._start(channel, flight)
                return
        self._waiting.append((flight, now()))
        if not self._opening:
            self._open()

    def _start(self, channel: Http2Connection, flight: Flight) -> None:
        channel.start(flight, self._head, self._answer())
        self._dirty.append(channel)

    def flush(self) -> None:
        """Requests that go over one channel at the same time are handed to the kernel in one piece."""
        dirty, self._dirty = self._dirty, []
        for channel in dirty:
            channel.flush()

    def flights(self) -> Iterator[tuple[Connection, Flight]]:
        for channel in (*self._ready, *self._closing):
            for call in list(channel.calls.values()):
                yield channel, call.flight
        for flight, since in (*self._refused, *self._waiting):
            yield _WaitingConnection(self, _Awaited(self._awaited_from(since))), flight

    def expire(self, at: int) -> int:
        if not self._deadline:
            return NEVER
        sent_by = at - self._deadline
        first = at  # of all that are left
        for channel in (*self._ready, *self._closing):
            if channel.first_sent <= sent_by:
                channel.link.read_until(at)
                channel.expire(sent_by, self._late)
            first = min(first, channel.first_sent)
        return first + self._deadline

    def _awaited_from(self, since: int) -> int:
        """What a waiting request's patience counts from: the opening of a channel. It has patience without end while
        the others' answers may make room for it."""
        if self._opening:
            return min(channel.link.connect_from for channel in self._opening)
        return now() if any(channel.calls for channel in self._ready) else since

    def close(self) -> None:
        for channel in (*self._ready, *self._opening, *self._closing):
            channel.link.shut()

    def _open(self) -> None:
        channel = Http2Connection(self)
        channel.link = self._dial.link(channel)
        self._opening.add(channel)
        self._dial.open(channel.link)

    # --- told by channels ---

    def opened(self, channel: Http2Connection) -> None:
        self._opening.discard(channel)
        self._ready.append(channel)
        self._begun.one_less()
        self._let_go(self._refused, channel)
        self._let_go(self._waiting, channel)
        if not channel.calls:  # nothing had to go, or the server allows nothing: then it is not asked for more
            self._idle.append(channel)
            self._unrefuse()
        elif self._refused or self._waiting:
            self._open_another()

    def ended(
        self, channel: Http2Connection, flight: Flight, at: int, event: End | Fail, answer: StreamResponse
    ) -> None:
        if self._waiting:
            self._let_go(self._waiting, channel)
        if not channel.calls:
            self._idle.append(channel)
        if self._deadline and at > flight.sent + self._deadline:  # it came before anybody had looked for such
            event = self._late
        self._on_ended(flight, at, event, answer)

    def refused(self, channel: Http2Connection, flight: Flight) -> None:
        at = now()
        flight.held += at - flight.sent
        self._refused.append((flight, at))
        self._dial.loop.call_soon(self._open_another)  # when the channel's own state is settled

    def has_room_again(self, channel: Http2Connection) -> None:
        self._let_go(self._waiting, channel)

    def closing(self, channel: Http2Connection) -> None:
        if channel in self._ready:
            self._ready.remove(channel)
            self._closing.add(channel)
            if self._waiting and not self._ready:
                self._dial.loop.call_soon(self._open_another)

    def closed(self, channel: Http2Connection, fail: Fail | None) -> None:
        self._closing.discard(channel)
        if channel in self._ready:
            self._ready.remove(channel)
        if channel in self._opening:
            self._opening.discard(channel)
            fail = self._why_not(fail or Fail("closed", ""))
            self._begun.one_less(fail)
            if self._ready:
                self._unrefuse()
            if not self._opening and (not self._ready or fail.code == "no_sockets"):
                self._drop_all(fail)
        elif self._waiting and not self._ready:
            self._dial.loop.call_soon(self._open_another)

    def _why_not(self, fail: Fail) -> Fail:
        """Why a channel did not open, as those hear it that waited for it. `closed` and `reset` are what becomes of requests
        that the server may have seen; it has seen none of these.

        With TLS 1.3 a client whose certificate is missed hears of it after the handshake, and may hear nothing.
        """
        if fail.code not in _BEFORE_OPEN:
            return fail
        if fail.code == "closed" and not fail.message and self._dial.context is not None:
            return Fail("tls", "the server closed after the TLS handshake: it may want a certificate (server.tls.cert)")
        return Fail("connect_failed", fail.message or _BEFORE_OPEN[fail.code])

    # --- requests that wait for a channel ---

    def _open_another(self) -> None:
        if (self._refused or self._waiting) and not self._opening:
            self._open()

    def _unrefuse(self) -> None:
        """There will be no new channel soon: those there are have to do."""
        self._waiting.extend(self._refused)
        self._refused.clear()
        for channel in list(self._ready):
            self._let_go(self._waiting, channel)

    def _let_go(self, those: deque[tuple[Flight, int]], channel: Http2Connection) -> None:
        while those and channel.has_room:
            flight, since = those.popleft()
            flight.held += now() - since
            self._start(channel, flight)
        if self._dirty:
            self.flush()

    def give_up(self, flight: Flight, fail: Fail) -> None:
        """A request that no channel has carried yet has failed; so have the channels that did not open in time."""
        if fail.code == "connect_timeout":
            for channel in list(self._opening):
                channel.broken(fail)
            if any(channel.calls for channel in self._ready):  # their answers will make room
                return
        for those in (self._refused, self._waiting):
            for place, (waiting, _) in enumerate(those):
                if waiting is flight:
                    del those[place]
                    self._on_ended(flight, now(), fail, self._answer())
                    return

    def _drop_all(self, fail: Fail) -> None:
        """There is no channel for them. Nor do they wait for room on others where it is this machine that has no more sockets:
        the load would be less than was asked for, and nobody would be told."""
        at = now()
        for those in (self._refused, self._waiting):
            while those:
                self._on_ended(those.popleft()[0], at, fail, self._answer())


class _Awaited(msgspec.Struct, frozen=True):
    """What a request that waits has instead of a link."""

    connect_from: int
    is_ready: bool = False


class _WaitingConnection(msgspec.Struct, frozen=True):
    """The carrier of a request that waits for a channel."""

    channels: Http2Pool
    link: _Awaited

    def give_up(self, flight: Flight, code: str, message: str = "") -> None:
        self.channels.give_up(flight, Fail(code, message))
