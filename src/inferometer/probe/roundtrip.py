"""One blocking round trip: a request over HTTP/1.1 or gRPC on its own connection, with the instant of each step.

Used before and after a run (query.py) and by `inferometer infer`, with the codecs and timestamps of a run. Events are passed to
the caller as they arrive (`OnEvents`). Raises UserError if there is no response; a response that is a failure is returned.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from inferometer.errors import UserError
from inferometer.probe.connect import Peer, connect
from inferometer.timing import clock
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Event, Fail, StreamResponse
from inferometer.units import NS, format_seconds
from inferometer.wire.failures import is_tls, meaning, tls_reason
from inferometer.wire.grpc import deadline_passed
from inferometer.wire.http1 import FRAME_HEAD, HTTP2, TLS, is_http2
from inferometer.wire.http2 import Data, GoAway, Headers, Http2Client, Http2Error, Reset, code_name
from inferometer.wire.target import Target

OnEvents = Callable[[int, Sequence[Event]], None]
"""Called with the events of bytes that arrived, and when they arrived (CLOCK_MONOTONIC ns)."""

_READ = 65_536  # larger buffers are mapped and unmapped by malloc for every read
_MIN_WAIT_S = 0.001
"""Timeout of a read once the deadline has passed: do not wait, but read what arrived before it."""


class OtherProtocol(UserError):  # noqa: N818 - not an error of the server
    """The port speaks HTTP/1.1 but the URL is grpc://, or gRPC but the URL is http://."""


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
    by_kernel: bool = False
    """Arrivals are timestamped by the kernel; otherwise when they are read."""

    @property
    def sent(self) -> int:
        """When the request starts: as soon as the connection is established."""
        return self.connected


# --- the connection --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(peer: Peer) -> Iterator["_Wire"]:
    """Connect, and close all sockets at the end of the block."""
    with contextlib.ExitStack() as opened:
        primed = clock.prime() if not peer.target.tls else None
        if primed is not None:
            opened.enter_context(primed)
        offset = clock.wall_offset()
        instants = Instants(tls=peer.target.tls, connect_from=now())
        sock = opened.enter_context(connect(peer)[0])
        instants.connected, instants.cpu = now(), -time.thread_time_ns()
        sock.settimeout(peer.timeout or None)
        if primed is not None:
            clock.enable_stamps(sock)
        yield _Wire(peer, sock, instants, offset if primed is not None else None)


class _DeadlinePassed(Exception):  # noqa: N818 - a normal end of a call
    pass


class _Wire:
    """A connected socket, with kernel timestamps if there are any (not with TLS)."""

    def __init__(self, peer: Peer, sock: socket.socket, instants: Instants, offset: int | None) -> None:
        """`offset`: from the monotonic clock to the kernel's timestamps; None: there are no such timestamps."""
        self.instants = instants
        self._peer = peer
        self._sock = sock
        self._offset = offset
        self.until = 0  # the deadline; 0: none
        self.is_cut = False  # the deadline passed in the middle of a write
        self._is_by_deadline = False  # the next wait is limited by the deadline, not by the timeout
        self._last = 0  # when the last bytes arrived
        self._is_refused = False  # the server closed before it had read the request

    @property
    def target(self) -> Target:
        return self._peer.target

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
        found.cpu += time.thread_time_ns()
        return found

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


def _ending(events: Sequence[Event]) -> End | Fail | None:
    return next((event for event in events if isinstance(event, End | Fail)), None)


# --- HTTP/1.1 --------------------------------------------------------------------------------------------------------


def over_http(
    peer: Peer, request: bytes, decoder: Decoder, on_events: OnEvents, deadline: float = 0
) -> tuple[Instants, Fail | None]:
    """Send a request and feed the decoder until the response ends; return its failure, if it is one.

    `deadline`: seconds from the send after which the request is given up with the failure `total_timeout`; 0: no limit.
    """
    with _connected(peer) as wire:
        wire.until = wire.instants.sent + int(deadline * NS) if deadline else 0
        try:
            wire.write(request)
            wire.all_written()
            at, ending, start = _receive_http(wire, decoder, on_events)
        except _DeadlinePassed:
            return wire.ended(now()), Fail("total_timeout", "")
        if not isinstance(ending, Fail):
            return wire.ended(at), None
        if is_http2(start):
            raise _speaks_http2(peer.target)
        if is_tls(start) and not peer.target.tls:
            raise UserError(f"{peer.target.url}: {TLS}", _with_tls(peer.target))
        return wire.ended(at), ending


def _receive_http(wire: _Wire, decoder: Decoder, on_events: OnEvents) -> tuple[int, End | Fail, bytes]:
    """Read until the response ends; return when and how it did, and its first bytes."""
    start = b""
    while True:
        data, at = wire.read()
        if data:
            wire.instants.first_byte = wire.instants.first_byte or at
        if len(start) < FRAME_HEAD:
            start += data[:FRAME_HEAD]
        events = decoder.feed(data) if data else decoder.eof()
        on_events(at, events)
        ending = _ending(events)
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

    `deadline`: seconds from the send to the end of the response; 0: no limit.
    """
    client = Http2Client()
    with _connected(peer) as wire:
        wire.until = wire.instants.sent + int(deadline * NS) if deadline else 0
        client.start()
        stream = client.request(block, body)
        try:
            at, ending = _receive(client, wire, stream, response, on_events)
        except _DeadlinePassed:
            at, ending = now(), deadline_passed(deadline)
            client.reset(stream)
        with contextlib.suppress(_DeadlinePassed):
            if not wire.is_cut:
                _flush(client, wire)
        return wire.ended(at), ending if isinstance(ending, Fail) else None


def _receive(
    client: Http2Client, wire: _Wire, stream: int, response: StreamResponse, on_events: OnEvents
) -> tuple[int, End | Fail]:
    """Read until the response ends; return when and how it did."""
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
            wire.instants.first_byte = wire.instants.first_byte or at
            decoded = _decoded(event, response)
            on_events(at, decoded)
            ending = _ending(decoded)
            if ending is not None:  # the rest does not matter
                return at, ending
        if broken is not None or not data:
            raise _no_response(wire.target, client, broken, start, is_begun=wire.instants.first_byte > 0)


def _flush(client: Http2Client, wire: _Wire) -> None:
    while data := client.take():
        wire.write(data)
    if not client.blocked:
        wire.all_written()


def _events(client: Http2Client, data: bytes) -> tuple[Sequence[Headers | Data | Reset | GoAway], Http2Error | None]:
    """Return the events of the bytes (empty: the server closed), and the protocol error after them, if any."""
    try:
        if data:
            return client.feed(data), None
        client.eof()
    except Http2Error as error:
        return error.events, error
    return (), None


def _decoded(event: Headers | Data | Reset, response: StreamResponse) -> Sequence[Event]:
    if isinstance(event, Reset):
        return (Fail("stream_reset", event.message or code_name(event.code)),)
    if isinstance(event, Headers):
        return response.headers(event.headers, event.end)
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
