"""One exchange, blocking: a request over HTTP/1.1 or gRPC on a connection of its own, with the instants of its parts.

It serves what is asked before t=0 and after the run (query.py) and `inferometer infer`. The codecs and the stamps are those of a
run. What bytes mean is told as they come (`heard`). What keeps an answer from coming is a UserError; an answer that is a
failure is returned.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence

import msgspec

from inferometer.errors import TRUST, UserError
from inferometer.timing import clock
from inferometer.timing.clock import now
from inferometer.types import Decoder, End, Event, Fail, StreamResponse
from inferometer.units import NS, format_seconds
from inferometer.wire.failures import is_tls, meaning, tls_reason
from inferometer.wire.grpc import deadline_passed
from inferometer.wire.http1 import FRAME_HEAD, HTTP2, TLS, is_http2
from inferometer.wire.http2 import Data, GoAway, Headers, Http2Client, Http2Error, Reset, code_name
from inferometer.wire.target import Target

Address = tuple[int, tuple[object, ...]]
Heard = Callable[[int, Sequence[Event]], None]
"""What bytes that came at an instant (CLOCK_MONOTONIC ns) mean."""

_READ = 65_536  # below what malloc maps anew for every read
_LEAST_S = 0.001
"""What is waited when a deadline has passed: no time, but what came before it is still read."""


class Peer(msgspec.Struct, frozen=True):
    """Where to ask."""

    target: Target
    context: ssl.SSLContext | None = None
    connect_timeout: float = 10.0
    timeout: float = 60.0
    """For each piece that is read or written; 0: no limit."""


class OtherProtocol(UserError):  # noqa: N818 - what listens there is well, but not what the URL says
    """HTTP/1.1 behind a grpc:// URL, or gRPC behind an http:// one."""


class Instants(msgspec.Struct):
    """CLOCK_MONOTONIC ns, each not before the one above it."""

    connect_from: int = 0
    connected: int = 0
    """TLS included."""
    written: int = 0
    """The last byte of the request was given to the kernel."""
    first_byte: int = 0
    """Of the answer; gRPC: not of what a connection begins with."""
    done: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    tls: bool = False
    by_kernel: bool = False
    """The kernel stamped what came in; else it is stamped when it was read."""

    @property
    def sent(self) -> int:
        """The request starts when the connection stands."""
        return self.connected


# --- connecting ------------------------------------------------------------------------------------------------------


def connect(place: Peer) -> tuple[socket.socket, Address]:
    """A connection to the first of the name's addresses that takes one, TLS included."""
    target = place.target
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise UserError(
            f"{target.url}: the name {target.host} does not resolve", "check the host in server.url"
        ) from None
    problem: OSError = OSError("no address")
    for family, kind, protocol, _, address in found:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # a system without IPv6, or out of descriptors
            problem = error
            continue
        sock.settimeout(place.connect_timeout or None)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            problem = error
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls and place.context is not None:
            sock = _encrypted(target, sock, place.context)
        return sock, (int(family), tuple(address))
    raise _unreachable(target, problem, place.connect_timeout) from None


def _encrypted(target: Target, sock: socket.socket, context: ssl.SSLContext) -> socket.socket:
    try:
        return context.wrap_socket(sock, server_hostname=target.host)
    except OSError as error:
        sock.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise UserError(f"{target.url}: {tls_reason(error)}", TRUST) from None
        reason = (
            tls_reason(error)
            if isinstance(error, ssl.SSLError)
            else "no answer"
            if isinstance(error, TimeoutError)
            else str(error)
        )
        plain = "grpc" if target.grpc else "http"
        raise UserError(
            f"{target.url}: no TLS there: {reason}", f"check the port, or write {plain}:// instead of {plain}s://"
        ) from None


def _unreachable(target: Target, error: OSError, timeout: float) -> UserError:
    if isinstance(error, ConnectionRefusedError):
        return UserError(f"{target.url}: connection refused", "start the server, or check host and port")
    if isinstance(error, TimeoutError):
        waited = format_seconds(timeout) if timeout else "the system's limit"
        return UserError(
            f"{target.url}: no connection within {waited}", "check host and port, or raise server.timeouts.connect"
        )
    return UserError(f"{target.url}: {error.strerror or error}", "check host and port")


@contextlib.contextmanager
def _connected(place: Peer) -> Iterator["_Wire"]:
    """A wire to the place; whatever happens, its sockets are closed in the end."""
    with contextlib.ExitStack() as opened:
        primed = clock.prime() if not place.target.tls else None
        if primed is not None:
            opened.enter_context(primed)
        offset = clock.wall_offset()
        instants = Instants(tls=place.target.tls, connect_from=now())
        sock = opened.enter_context(connect(place)[0])
        instants.connected = now()
        sock.settimeout(place.timeout or None)
        if primed is not None:
            clock.ask_for_stamps(sock)
        yield _Wire(place, sock, instants, offset if primed is not None else None)


class _DeadlinePassed(Exception):  # noqa: N818 - nothing is wrong: that is how a call ends
    pass


class _Wire:
    """A connected socket, read with stamps where the kernel gives them (not through TLS)."""

    def __init__(self, place: Peer, sock: socket.socket, instants: Instants, offset: int | None) -> None:
        """`offset`: from our clock to the kernel's stamps; None: there are none."""
        self.instants = instants
        self._place = place
        self._sock = sock
        self._offset = offset
        self.until = 0  # the deadline; 0: none
        self.is_cut = False  # it passed while something was written, of which a part is still to come
        self._is_by_deadline = False  # what the next wait is limited by
        self._last = 0  # when bytes came
        self._is_refused = False  # the server has closed before it took all

    @property
    def target(self) -> Target:
        return self._place.target

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:  # sendall would have the timeout for all of it, however much that is
                self._limit_wait()
                count = self._sock.send(rest)
                self.instants.bytes_out += count
                rest = rest[count:]
        except TimeoutError:
            self.is_cut = True
            raise self._late("took no more bytes") from None
        except OSError:
            self._is_refused = True  # what the server said before that is still to be read

    def all_is_written(self) -> None:
        """The request's last byte was among those that were just written."""
        if not self.instants.written and not self._is_refused:
            self.instants.written = now()

    def read(self) -> tuple[bytes, int]:
        """The next bytes and when they arrived; none: the server closed, and the instant is that of its last bytes."""
        self._limit_wait()
        try:
            if self._offset is None:
                data, stamp = self._sock.recv(_READ), 0
            else:
                data, ancillary, _, _ = self._sock.recvmsg(_READ, clock.CMSG_SPACE)
                stamp = clock.stamp_of(ancillary)
        except TimeoutError:
            raise self._late("did not answer" if not self.instants.first_byte else "sent nothing more") from None
        except ssl.SSLEOFError:
            data, stamp = b"", 0
        except ssl.SSLError as error:
            raise UserError(
                f"{self._place.target.url}: {tls_reason(error)}", "check server.tls: the server may want a certificate"
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
        self._last = max(at, self._last, self.instants.connected)  # stamps are older than our clock's reading
        if self.until and self._last > self.until:
            raise _DeadlinePassed
        return data, self._last

    def ended(self, at: int) -> Instants:
        """The instants, in order: a server may answer before it has read all."""
        found = self.instants
        found.first_byte = found.first_byte or at
        found.written = min(found.written or found.first_byte, found.first_byte)
        found.done = at
        return found

    def _limit_wait(self) -> None:
        """For the next read or write: the timeout, or what is left until the deadline."""
        if self.until:
            left = max((self.until - now()) / NS, _LEAST_S)
            timeout = self._place.timeout or left
            self._is_by_deadline = left <= timeout
            self._sock.settimeout(min(left, timeout))

    def _late(self, what: str) -> UserError | _DeadlinePassed:
        if self._is_by_deadline:
            return _DeadlinePassed()
        return UserError(
            f"{self._place.target.url}: the server {what} within {format_seconds(self._place.timeout)}",
            "check that it is alive, or raise server.timeouts.connect",
        )


def _ending(events: Sequence[Event]) -> End | Fail | None:
    return next((event for event in events if isinstance(event, End | Fail)), None)


# --- HTTP/1.1 --------------------------------------------------------------------------------------------------------


def over_http(place: Peer, request: bytes, decoder: Decoder, heard: Heard) -> tuple[Instants, Fail | None]:
    """Send a whole request and feed the decoder until it says how the answer ended."""
    with _connected(place) as wire:
        wire.write(request)
        wire.all_is_written()
        start = b""
        ending: End | Fail | None = None
        while ending is None:
            data, at = wire.read()
            if data:
                wire.instants.first_byte = wire.instants.first_byte or at
            if len(start) < FRAME_HEAD:
                start += data[:FRAME_HEAD]
            events = decoder.feed(data) if data else decoder.eof()
            heard(at, events)
            ending = _ending(events)
        if not isinstance(ending, Fail):
            return wire.ended(at), None
        if is_http2(start):
            raise _speaks_http2(place.target)
        if is_tls(start) and not place.target.tls:
            raise UserError(f"{place.target.url}: {TLS}", _with_tls(place.target))
        return wire.ended(at), ending


def _speaks_http2(target: Target) -> OtherProtocol:
    return OtherProtocol(
        f"{target.url}: {HTTP2}",
        f"write grpc{'s' * target.tls}://{target.authority}, or give the server's HTTP port",
    )


def or_with_tls(remedy: str, target: Target) -> str:
    """The remedy where the server closed without a byte: most of those that speak TLS do so at a plain request."""
    return remedy if target.tls else f"{_with_tls(target)} if it speaks TLS, or {remedy}"


def _with_tls(target: Target) -> str:
    return f"write {msgspec.structs.replace(target, tls=True).url}"


# --- gRPC ------------------------------------------------------------------------------------------------------------


def over_grpc(
    place: Peer, block: bytes, body: bytes, answer: StreamResponse, heard: Heard, deadline: float = 0
) -> tuple[Instants, Fail | None]:
    """Make one call and tell the answer's frames until it says how it ended; `deadline`: seconds from its sending in which
    that has to be, 0: no limit."""
    client = Http2Client()
    with _connected(place) as wire:
        wire.until = wire.instants.sent + int(deadline * NS) if deadline else 0
        client.start()
        stream = client.request(block, body)
        try:
            at, ending = _answered(client, wire, stream, answer, heard)
        except _DeadlinePassed:
            at, ending = now(), deadline_passed(deadline)
            client.reset(stream)
        with contextlib.suppress(_DeadlinePassed):
            if not wire.is_cut:
                _flush(client, wire)
        return wire.ended(at), ending if isinstance(ending, Fail) else None


def _answered(
    client: Http2Client, wire: _Wire, stream: int, answer: StreamResponse, heard: Heard
) -> tuple[int, End | Fail]:
    """When and how the answer ended, by its own words."""
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
            said = _said(event, answer)
            heard(at, said)
            ending = _ending(said)
            if ending is not None:  # whatever follows, that was it
                return at, ending
        if broken is not None or not data:
            raise _no_answer(wire.target, client, broken, start, is_begun=wire.instants.first_byte > 0)


def _flush(client: Http2Client, wire: _Wire) -> None:
    while data := client.take():
        wire.write(data)
    if not client.blocked:
        wire.all_is_written()


def _events(client: Http2Client, data: bytes) -> tuple[Sequence[Headers | Data | Reset | GoAway], Http2Error | None]:
    """What the bytes say (none: the server closed), and what is wrong with those after that."""
    try:
        if data:
            return client.feed(data), None
        client.eof()
    except Http2Error as error:
        return error.events, error
    return (), None


def _said(event: Headers | Data | Reset, answer: StreamResponse) -> Sequence[Event]:
    if isinstance(event, Reset):
        return (Fail("stream_reset", event.message or code_name(event.code)),)
    if isinstance(event, Headers):
        return answer.headers(event.headers, event.end)
    return answer.data(event.data, event.end)


def _no_answer(
    target: Target, client: Http2Client, broken: Http2Error | None, start: bytes, is_begun: bool
) -> UserError:
    """Why there will be none: the server broke the rules, or closed. `start`: the first bytes that came."""
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
    if target.tls:  # with TLS 1.3 a client whose certificate is missed may hear nothing more than this
        to_http = f"it may want a certificate (server.tls.cert); or {to_http}"
    return UserError(f"{target.url}: {meaning('closed')}: is it a gRPC server?", or_with_tls(to_http, target))
