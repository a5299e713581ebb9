"""One exchange by hand: a blocking request over HTTP/1.1 or gRPC, with the instants of its parts.

It serves what is asked before t=0 and after the run (metadata, statistics, reflection ...) and `inferometer infer`. The codecs
and the stamps are those of the engine. What keeps an answer from coming is a UserError; what the server answers is a Reply.
"""

import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence

import httptools
import msgspec

from inferometer.engine.tls import tls_reason
from inferometer.errors import UserError
from inferometer.timing import clock
from inferometer.timing.clock import now
from inferometer.types import End, Fail
from inferometer.units import format_seconds
from inferometer.wire.failures import bounded, meaning
from inferometer.wire.grpc import GrpcAnswer, framed, header_block
from inferometer.wire.http1 import request_head
from inferometer.wire.http2 import Client, Data, GoAway, Headers, Http2Error, Reset, code_name
from inferometer.wire.target import Target

Address = tuple[int, tuple[object, ...]]

_READ = 65_536


class Reply(msgspec.Struct):
    """An answer with its instants, CLOCK_MONOTONIC ns."""

    connect_from: int
    connected: int = 0
    """TLS included."""
    sent: int = 0
    written: int = 0
    first_byte: int = 0
    done: int = 0
    status: int = 0
    headers: dict[str, str] = {}
    """By lower-case name; gRPC: the trailers too."""
    pieces: list[tuple[int, bytes]] = []
    """What came when: pieces of the body (HTTP), or whole messages (gRPC)."""
    fail: Fail | None = None
    """gRPC: why the call failed."""
    sent_bytes: int = 0

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)


class Place(msgspec.Struct, frozen=True):
    """Where to ask."""

    target: Target
    context: ssl.SSLContext | None = None
    connect_timeout: float = 10.0
    timeout: float = 60.0
    """For each piece that is read or written; 0: no limit."""


# --- connecting ------------------------------------------------------------------------------------------------------


def connect(place: Place) -> tuple[socket.socket, Address]:
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
        sock = socket.socket(family, kind, protocol)
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
            remedy = "set server.tls.ca to the CA's PEM file, or server.tls.verify to false"
            raise UserError(f"{target.url}: {tls_reason(error)}", remedy) from None
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


class _Wire:
    """A connected socket, read with stamps where the kernel gives them (not through TLS)."""

    def __init__(self, place: Place, reply: Reply) -> None:
        self.place, self.reply = place, reply
        self._primed = clock.prime() if not place.target.tls else None
        self._offset = clock.wall_offset()
        reply.connect_from = now()
        try:
            self.sock, _ = connect(place)
        except UserError:
            self._close_primed()
            raise
        reply.connected = now()
        self.sock.settimeout(place.timeout or None)
        if self._primed is not None:
            clock.ask_for_stamps(self.sock)

    def __enter__(self) -> "_Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
        self._close_primed()

    def _close_primed(self) -> None:
        if self._primed is not None:
            self._primed.close()

    def write(self, data: bytes) -> None:
        if not data:
            return
        self.reply.sent_bytes += len(data)
        rest = memoryview(data)
        try:
            while rest:  # sendall would have the timeout for all of it, however much that is
                rest = rest[self.sock.send(rest) :]
        except TimeoutError:
            raise self._late("took no more bytes") from None
        except OSError:
            return  # the server has closed: what it said before that is still to be read
        self.reply.written = now()

    def read(self) -> tuple[bytes, int]:
        """The next bytes and when they arrived; none: the server closed."""
        try:
            if self._primed is None:
                data, stamp = self.sock.recv(_READ), 0
            else:
                data, ancillary, _, _ = self.sock.recvmsg(_READ, clock.CMSG_SPACE)
                stamp = clock.stamp_of(ancillary)
        except TimeoutError:
            raise self._late("did not answer") from None
        except ssl.SSLEOFError:
            return b"", now()
        except ssl.SSLError as error:
            raise UserError(
                f"{self.place.target.url}: {tls_reason(error)}", "check server.tls: the server may want a certificate"
            ) from None
        except OSError:
            return b"", now()
        at = now()
        return data, min(at, stamp - self._offset) if stamp else at

    def _late(self, what: str) -> UserError:
        return UserError(
            f"{self.place.target.url}: the server {what} within {format_seconds(self.place.timeout)}",
            "check that it is alive",
        )


# --- HTTP/1.1 --------------------------------------------------------------------------------------------------------


class _Collected:
    """What httptools says of one answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.has_head = False
        self.is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.has_head = self.parser.get_status_code() >= 200

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self.is_complete = self.parser.get_status_code() >= 200
        if not self.is_complete:  # 100 Continue, 103 Early Hints: the answer is still to come
            self.headers.clear()


def http(place: Place, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Reply:
    """One request over a connection of its own."""
    target = place.target
    length = {"Content-Length": str(len(body))} if body or method == "POST" else {}
    head = request_head(method, target.prefix + path, target.authority, {**headers, **length, "Connection": "close"})
    reply = Reply(0, headers={}, pieces=[])
    collected = _Collected()
    parser = collected.parser
    with _Wire(place, reply) as wire:
        reply.sent = now()
        wire.write(head + b"\r\n" + body)
        start = b""
        while not collected.is_complete:
            data, at = wire.read()
            reply.done = at
            if not data:
                break
            reply.first_byte = reply.first_byte or at
            start = start if len(start) > 64 else start + data
            try:
                parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                raise _not_http(target, f"{method} {path}", start) from None
            reply.pieces += [(at, piece) for piece in collected.pieces]
            collected.pieces.clear()
    if not start:
        raise UserError(
            f"{target.url}: {method} {path}: the server closed the connection without an answer",
            "check that an HTTP server is there",
        )
    unlimited = collected.has_head and not {"content-length", "transfer-encoding"} & collected.headers.keys()
    if not collected.is_complete and not unlimited:
        raise UserError(f"{target.url}: {method} {path}: {meaning('cut_short')}", "check the server's log")
    reply.status = parser.get_status_code()
    reply.headers = collected.headers
    return reply


def _not_http(target: Target, asked: str, start: bytes) -> UserError:
    if len(start) >= 9 and start[3] == 4 and start[5:9] == bytes(4):  # a SETTINGS frame of stream 0
        return UserError(
            f"{target.url}: speaks HTTP/2 (gRPC?), not HTTP/1.1",
            f"write grpc://{target.authority}, or give the server's HTTP port",
        )
    shown = bounded(start[:60].decode("latin-1"))
    return UserError(f"{target.url}: {asked}: that is no HTTP/1.1: it starts with {shown!r}", "check the port")


# --- gRPC ------------------------------------------------------------------------------------------------------------


def grpc(
    place: Place,
    path: str,
    messages: Sequence[bytes],
    metadata: Mapping[str, str],
    deadline: float = 0,
    compression: str = "none",
) -> Reply:
    """One call on a connection of its own; the answer's messages are in `pieces`, unpacked."""
    target = place.target
    block = header_block(path, target.authority, target.tls, metadata, deadline, compression)
    reply = Reply(0, headers={}, pieces=[])
    kept: list[bytes] = []
    answer = GrpcAnswer(streamed=True, kept=kept)
    client = Client()
    with _Wire(place, reply) as wire:
        client.start()
        reply.sent = now()
        stream = client.request(block, b"".join(framed(message, compression) for message in messages))
        while reply.fail is None and not reply.done:
            wire.write(b"".join(_all(client)))
            data, at = wire.read()
            for event in _frames(target, client, data, stream, bool(reply.first_byte)):
                reply.first_byte = reply.first_byte or at
                if reply.fail is not None:  # whatever follows, that was the reason
                    break
                if isinstance(event, Reset):
                    reply.fail = Fail("stream_reset", event.message or code_name(event.code))
                    break
                if isinstance(event, Headers):
                    reply.headers |= {_text(name): _text(value) for name, value in event.headers}
                    said = answer.headers(event.headers, event.end)
                else:
                    said = answer.data(event.data, event.end)
                reply.pieces += [(at, message) for message in kept]
                kept.clear()
                for meant in said:
                    if isinstance(meant, Fail):
                        reply.fail, reply.done = meant, at
                    elif isinstance(meant, End):
                        reply.done = at
        wire.write(b"".join(_all(client)))
    reply.done = reply.done or now()
    reply.status = answer.status
    if reply.fail is not None and reply.fail.code == "not_grpc":
        raise UserError(f"{target.url}: {reply.fail.message}: that is no gRPC", "check the port and the URL's scheme")
    return reply


def _all(client: Client) -> Iterator[bytes]:
    while data := client.take():
        yield data


def _frames(target: Target, client: Client, data: bytes, stream: int, is_begun: bool) -> list[Headers | Data | Reset]:
    """The events of our stream in `data`."""
    try:
        events = client.feed(data) if data else []
        if not data:
            client.eof()
    except Http2Error as error:
        raise UserError(
            f"{target.url}: {error.message}",
            f"check the port, or write http{'s' * target.tls}://{target.authority} for an HTTP server",
        ) from None
    if not data:
        if is_begun:
            raise UserError(f"{target.url}: {meaning('cut_short')}", "check the server's log")
        what = f"{target.url}: the server closed the connection without an answer"
        if client.settings_received:
            raise UserError(what, "check the server's log")
        raise UserError(
            f"{what}: is it a gRPC server?",
            f"check the port, or write http{'s' * target.tls}://{target.authority} for an HTTP server",
        )
    return [event for event in events if not isinstance(event, GoAway) and event.stream == stream]


def _text(value: bytes) -> str:
    return value.decode("latin-1")
