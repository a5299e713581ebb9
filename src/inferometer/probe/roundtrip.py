"""One blocking round trip: a request over HTTP/1.1 or gRPC, with the instant of each step.

Used before and after a run (query.py), by `inferometer infer` and by `inferometer.Client`, with the codecs and timestamps of a
run. Events are passed to the caller as they arrive (`OnEvents`). Raises UserError if there is no response; a response that is a
failure is returned.

A round trip has its own connection, unless the peer keeps connections open (kept.py). If the server closed such a connection
before it sent a byte of the response, the request is sent again on another one.
"""

import contextlib
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Sequence

import msgspec

from inferometer.errors import UserError
from inferometer.probe.connect import Peer, connect
from inferometer.probe.kept import Opened
from inferometer.timing import clock
from inferometer.timing.clock import now
from inferometer.timing.rtt import min_rtt
from inferometer.types import Decoder, End, Event, Fail, StreamResponse
from inferometer.units import NS, format_bytes, format_seconds
from inferometer.wire.failures import is_tls, meaning, tls_reason
from inferometer.wire.grpc import deadline_passed
from inferometer.wire.http1 import FRAME_HEAD, HTTP2, TLS, is_http2
from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.events import Data, GoAway, Headers, Http2Error, Reset, Response
from inferometer.wire.http2.frames import code_name
from inferometer.wire.target import Target

OnEvents = Callable[[int, Sequence[Event]], None]
"""Called with the events of bytes that arrived, and when they arrived (CLOCK_MONOTONIC ns)."""

_READ = 65_536  # larger buffers are mapped and unmapped by malloc for every read
_MIN_WAIT_S = 0.001
"""Timeout of a read once the deadline has passed: do not wait, but read what arrived before it."""


class OtherProtocol(UserError):  # noqa: N818 - not an error of the server
    """The port speaks HTTP/1.1 but the URL is grpc://, or gRPC but the URL is http://."""


class TooLarge(UserError):  # noqa: N818 - not an error of the server
    """The response is larger than the peer allows."""

    def __init__(self, peer: Peer) -> None:
        what = f"{peer.target.url}: the response is larger than {format_bytes(peer.max_size)}"
        super().__init__(what, "check the URL, and that the server ends its responses")


class Instants(msgspec.Struct):
    """The steps of a round trip in CLOCK_MONOTONIC ns, in the order of time."""

    connect_from: int = 0
    connected: int = 0
    """Including TLS."""
    written: int = 0
    """The last byte of the request was passed to the kernel."""
    first_byte: int = 0
    """First byte of the response; over gRPC, not of the settings that a connection begins with."""
    done: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    tls: bool = False
    cpu: int = 0
    """CPU time of this thread from `connected` to `done`, ns."""
    rtt: int = -1
    """Shortest round trip of the connection, as the kernel measured it; -1: not known."""
    by_kernel: bool = False
    """Arrivals are timestamped by the kernel; otherwise when they are read."""

    @property
    def sent(self) -> int:
        """When the request starts: as soon as the connection is established."""
        return self.connected


Arriving = Generator[tuple[int, Sequence[Event]], None, tuple[Instants, Fail | None]]
"""Yields what OnEvents is called with, as it arrives. Over HTTP there are no events: the decoder has what was received."""


# --- the connection --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(peer: Peer) -> Iterator["_Wire"]:
    """Connect, or take a connection that is open; at the end of the block, close it unless it is kept."""
    opened = _open(peer) if peer.kept is None else peer.kept.take(lambda: _open(peer))
    instants = Instants(tls=peer.target.tls, connected=now(), cpu=-time.thread_time_ns())
    instants.connect_from = instants.connected if opened.is_used else opened.connect_from
    is_done = False
    try:
        offset = clock.wall_offset() if opened.has_stamps else None
        opened.sock.settimeout(peer.timeout or None)
        wire = _Wire(peer, opened, instants, offset)
        yield wire
        is_done = True
    finally:
        if is_done and wire.is_reusable and peer.kept is not None:
            peer.kept.give_back(opened)
        else:
            opened.close()


def _open(peer: Peer) -> Opened:
    with contextlib.ExitStack() as resources:
        primed = clock.prime() if not peer.target.tls else None
        if primed is not None:
            resources.enter_context(primed)
        connect_from = now()
        sock = resources.enter_context(connect(peer)[0])
        if primed is not None:
            clock.enable_stamps(sock)
        return Opened(sock, resources.pop_all(), connect_from, primed is not None)


class _DeadlinePassed(Exception):  # noqa: N818 - a normal end of a call
    pass


class _Wire:
    """A connected socket, with kernel timestamps if there are any (not with TLS)."""

    def __init__(self, peer: Peer, opened: Opened, instants: Instants, offset: int | None) -> None:
        """`offset`: from the monotonic clock to the kernel's timestamps; None: there are no such timestamps."""
        self.instants = instants
        self.opened = opened
        self.is_reusable = False  # the connection can carry another round trip
        self._peer = peer
        self._sock = opened.sock
        self._offset = offset
        self.until = 0  # the deadline; 0: none
        self.is_cut = False  # the deadline passed in the middle of a write
        self._is_by_deadline = False  # the next wait is limited by the deadline, not by the timeout
        self._last = 0  # when the last bytes arrived
        self._is_refused = False  # the server closed before it had read the request

    @property
    def target(self) -> Target:
        return self._peer.target

    def limit(self, deadline: float) -> None:
        """Set the deadline, in seconds from the send; 0: ten times what one read may take."""
        seconds = deadline or 10 * self._peer.timeout
        self.until = self.instants.sent + int(seconds * NS) if seconds else 0

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:  # sendall applies the timeout to the whole, however long that is
                self._limit_wait()
                count = self._sock.send(rest)
                self.instants.bytes_out += count
                rest = rest[count:]
        except TimeoutError:
            self.is_cut = True
            raise self._late("did not read the request") from None
        except OSError:
            self._is_refused = True  # the response sent before that is still to be read

    def all_written(self) -> None:
        """Record that the request's last byte has been written."""
        if not self.instants.written and not self._is_refused:
            self.instants.written = now()

    def read(self) -> tuple[bytes, int]:
        """Return the next bytes and when they arrived; empty if the server closed, with the instant of its last bytes."""
        self._limit_wait()
        try:
            if self._offset is None:
                data, stamp = self._sock.recv(_READ), 0
            else:
                data, ancillary, _, _ = self._sock.recvmsg(_READ, clock.CMSG_SPACE)
                stamp = clock.stamp_of(ancillary)
        except TimeoutError:
            raise self._late("did not respond" if not self.instants.first_byte else "sent nothing more") from None
        except ssl.SSLEOFError:
            data, stamp = b"", 0
        except ssl.SSLError as error:
            raise UserError(
                f"{self._peer.target.url}: {tls_reason(error)}",
                "check {server.tls.cert}: the server may require a certificate",
            ) from None
        except OSError:
            data, stamp = b"", 0
        at = now()
        if not data:
            return b"", self._last or at
        if stamp and self._offset is not None:
            self.instants.by_kernel = True
            at = min(at, stamp - self._offset)
        self.instants.bytes_in += len(data)
        if self.instants.bytes_in > self._peer.max_size:
            raise TooLarge(self._peer)
        self._last = max(at, self._last, self.instants.connected)  # timestamps are older than the clock reading
        if self.until and self._last > self.until:
            raise _DeadlinePassed
        return data, self._last

    def ended(self, at: int) -> Instants:
        """Return the instants in order: a server may respond before it has read the whole request."""
        found = self.instants
        found.first_byte = found.first_byte or at
        found.written = min(found.written or found.first_byte, found.first_byte)
        found.done = at
        found.rtt = min_rtt(self._sock)
        found.cpu += time.thread_time_ns()
        return found

    @property
    def is_stale(self) -> bool:
        """Whether the server closed a kept connection before it sent a byte of this response."""
        return self.opened.is_used and not self.instants.first_byte

    def _limit_wait(self) -> None:
        """Limit the next read or write to the timeout, or to the time left until the deadline."""
        if self.until:
            left = max((self.until - now()) / NS, _MIN_WAIT_S)
            timeout = self._peer.timeout or left
            self._is_by_deadline = left <= timeout
            self._sock.settimeout(min(left, timeout))

    def _late(self, what: str) -> UserError | _DeadlinePassed:
        if self._is_by_deadline:
            return _DeadlinePassed()
        return UserError(
            f"{self._peer.target.url}: the server {what} within {format_seconds(self._peer.timeout)}",
            "check that it is alive, or raise {server.timeouts.connect}",
        )


def drained(arriving: Arriving, on_events: OnEvents) -> tuple[Instants, Fail | None]:
    while True:
        try:
            at, events = next(arriving)
        except StopIteration as end:
            result: tuple[Instants, Fail | None] = end.value
            return result
        on_events(at, events)


def _ending(events: Sequence[Event]) -> End | Fail | None:
    return next((event for event in events if isinstance(event, End | Fail)), None)


# --- HTTP/1.1 --------------------------------------------------------------------------------------------------------


def over_http(
    peer: Peer, request: bytes, decoder: Decoder, on_events: OnEvents, deadline: float = 0
) -> tuple[Instants, Fail | None]:
    """Send a request and feed the decoder until the response ends; return its failure, if it is one.

    `deadline`: seconds from the send after which the request is given up with the failure `total_timeout`; 0: ten times what one
    read may take.
    """
    return drained(http_events(peer, request, decoder, deadline), on_events)


def http_events(peer: Peer, request: bytes, decoder: Decoder, deadline: float = 0) -> Arriving:
    """The same as a generator, which yields the events as they arrive. Closing it closes the connection."""
    while True:
        with _connected(peer) as wire:
            wire.limit(deadline)
            try:
                wire.write(request)
                wire.all_written()
                at, ending, start = yield from _receive_http(wire, decoder)
            except _DeadlinePassed:
                limit = format_seconds((wire.until - wire.instants.sent) / NS)
                return wire.ended(now()), Fail("total_timeout", f"it was not complete within {limit}")
            if ending is None:
                decoder.reset()
                continue
            wire.is_reusable = ending.keep_alive
            if not isinstance(ending, Fail):
                return wire.ended(at), None
            if is_http2(start):
                raise _speaks_http2(peer.target)
            if is_tls(start) and not peer.target.tls:
                raise UserError(f"{peer.target.url}: {TLS}", _with_tls(peer.target))
            return wire.ended(at), ending


def _receive_http(
    wire: _Wire, decoder: Decoder
) -> Generator[tuple[int, Sequence[Event]], None, tuple[int, End | Fail | None, bytes]]:
    """Read until the response ends; return when and how it did, and its first bytes. None: the connection was stale."""
    start = b""
    while True:
        data, at = wire.read()
        if data:
            wire.instants.first_byte = wire.instants.first_byte or at
        elif wire.is_stale:
            return at, None, b""
        if len(start) < FRAME_HEAD:
            start += data[:FRAME_HEAD]
        ending = decoder.feed((data,), (at,)) if data else decoder.eof()
        yield at, ()
        if ending is not None:
            return at, ending, start


def _speaks_http2(target: Target) -> OtherProtocol:
    return OtherProtocol(
        f"{target.url}: {HTTP2}",
        f"write grpc{'s' * target.tls}://{target.authority}, or give the server's HTTP port",
    )


def or_with_tls(remedy: str, target: Target) -> str:
    """The remedy for a server that closed without a byte: most TLS servers do so if a request is not encrypted."""
    return remedy if target.tls else f"{_with_tls(target)} if it speaks TLS, or {remedy}"


def _with_tls(target: Target) -> str:
    return f"write {msgspec.structs.replace(target, tls=True).url}"


# --- gRPC ------------------------------------------------------------------------------------------------------------


def over_grpc(
    peer: Peer, block: bytes, body: bytes, response: StreamResponse, on_events: OnEvents, deadline: float = 0
) -> tuple[Instants, Fail | None]:
    """Make one call and feed `response` until it ends; return its failure, if it is one.

    `deadline`: seconds from the send to the end of the response; 0: ten times what one read may take.
    """
    return drained(grpc_events(peer, block, body, response, deadline), on_events)


def grpc_events(peer: Peer, block: bytes, body: bytes, response: StreamResponse, deadline: float = 0) -> Arriving:
    """The same as a generator, which yields the events as they arrive. Closing it closes the connection."""
    while True:
        with _connected(peer) as wire:
            wire.limit(deadline)
            client = wire.opened.http2
            if client is None:
                client = wire.opened.http2 = Http2Client()
                client.start()
            elif client.is_closing:
                continue
            stream = client.request(block, body)
            try:
                at, ending = yield from _receive(client, wire, stream, response)
            except _DeadlinePassed:
                at, ending = now(), deadline_passed((wire.until - wire.instants.sent) / NS)
                client.reset(stream)
            if ending is None:
                continue
            with contextlib.suppress(_DeadlinePassed):
                if not wire.is_cut:
                    _flush(client, wire)
            wire.is_reusable = not (wire.is_cut or client.is_closing or client.open_streams)
            return wire.ended(at), ending if isinstance(ending, Fail) else None


def _receive(
    client: Http2Client, wire: _Wire, stream: int, response: StreamResponse
) -> Generator[tuple[int, Sequence[Event]], None, tuple[int, End | Fail | None]]:
    """Read until the response ends; return when and how it did. None: the connection was stale."""
    start = b""
    while True:
        _flush(client, wire)
        data, at = wire.read()
        if len(start) < FRAME_HEAD:
            start += data[:FRAME_HEAD]
        events, broken = _events(client, data)
        for event in events:
            if isinstance(event, GoAway) or event.stream != stream:
                continue
            if isinstance(event, Reset) and event.refused and wire.is_stale:
                return at, None
            wire.instants.first_byte = wire.instants.first_byte or at
            decoded = _decoded(event, response)
            yield at, decoded
            ending = _ending(decoded)
            if ending is not None:  # the rest does not matter
                return at, ending
        if not data and wire.is_stale:
            return at, None
        if broken is not None or not data:
            raise _no_response(wire.target, client, broken, start, is_begun=wire.instants.first_byte > 0)


def _flush(client: Http2Client, wire: _Wire) -> None:
    while data := client.take():
        wire.write(data)
    if not client.blocked:
        wire.all_written()


def _events(
    client: Http2Client, data: bytes
) -> tuple[Sequence[Headers | Data | Response | Reset | GoAway], Http2Error | None]:
    """Return the events of the bytes (empty: the server closed), and the protocol error after them, if any."""
    try:
        if data:
            return client.feed(data), None
        client.eof()
    except Http2Error as error:
        return error.events, error
    return (), None


def _decoded(event: Headers | Data | Response | Reset, response: StreamResponse) -> Sequence[Event]:
    if isinstance(event, Reset):
        return (Fail("stream_reset", event.message or code_name(event.code)),)
    if isinstance(event, Headers):
        return response.headers(event.headers, event.end)
    if isinstance(event, Response):
        return response.complete(event.headers, event.data, event.trailers)
    return response.data(event.data, event.end)


def _no_response(
    target: Target, client: Http2Client, broken: Http2Error | None, start: bytes, is_begun: bool
) -> UserError:
    """Why there is no response: the server violated the protocol, or closed. `start`: the first bytes received."""
    to_http = f"check the port, or write http{'s' * target.tls}://{target.authority} for an HTTP server"
    if broken is not None and is_tls(start) and not target.tls:
        return UserError(f"{target.url}: {broken.message}", _with_tls(target))
    if broken is not None:
        kind = UserError if client.settings_received else OtherProtocol
        return kind(f"{target.url}: {broken.message}", to_http)
    if is_begun:
        return UserError(f"{target.url}: {meaning('cut_short')}", "check the server's log")
    if client.settings_received:
        return UserError(f"{target.url}: {meaning('closed')}", "check the server's log")
    if target.tls:  # with TLS 1.3 this may be all that a client without a certificate sees
        to_http = f"it may require a certificate ({{server.tls.cert}}); or {to_http}"
    return UserError(f"{target.url}: {meaning('closed')}: is it a gRPC server?", or_with_tls(to_http, target))
