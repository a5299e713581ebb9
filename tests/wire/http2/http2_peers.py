"""Helpers for the tests of HTTP/2: peers built with the h2 library, connections after their handshake, and lists of events."""

import time
from collections.abc import Iterable
from itertools import pairwise

from h2.config import H2Configuration
from h2.connection import H2Connection

from inferometer.wire.http2 import frames
from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.events import Data, Event, RequestData, RequestHeaders, ServerEvent
from inferometer.wire.http2.hpack import encode
from inferometer.wire.http2.server import Http2Server

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"127.0.0.1:8001"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
BLOCK = encode(REQUEST)
RESPONSE = [(b":status", b"200"), (b"content-type", b"application/grpc")]
TRAILERS = [(b"grpc-status", b"0"), (b"grpc-message", b"")]
OK = encode(RESPONSE)
END = encode(TRAILERS)


def server() -> H2Connection:
    connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    connection.initiate_connection()
    return connection


def pair(**options: int) -> tuple[Http2Client, H2Connection]:
    """A client and a server built with h2, after their handshake."""
    client, peer = Http2Client(**options), server()
    client.start()
    exchange(client, peer)
    return client, peer


def exchange(client: Http2Client, peer: H2Connection) -> tuple[list[Event], list[object]]:
    """Transfer bytes both ways until there are no more; return the events of the client and of the server."""
    seen: list[Event] = []
    at_server: list[object] = []
    while True:
        up = client.take()
        if up:
            at_server += peer.receive_data(up)
        down = peer.data_to_send()
        if down:
            seen += client.feed(down)
        if not up and not down:
            return seen, at_server


def connected(settings: dict[int, int] | None = None, **options: int) -> Http2Client:
    """A client that has received the server's SETTINGS and has nothing left to send."""
    client = Http2Client(**options)
    client.start()
    client.feed(frames.settings(settings or {}))
    while client.take():
        pass
    return client


def written(client: Http2Client, limit: int = 1 << 20) -> list[tuple[int, int, int, bytes]]:
    """All frames that the client has to send, as (kind, flags, stream, payload)."""
    return split(b"".join(iter(lambda: client.take(limit), b"")))


def split(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """The frames of `data`, as (kind, flags, stream, payload)."""
    result, at = [], 0
    while at < len(data):
        word, flags, stream = frames.unpack_head(data, at)
        stop = at + 9 + (word >> 8)
        assert stop <= len(data)
        result.append((word & 0xFF, flags, stream, data[at + 9 : stop]))
        at = stop
    return result


def joined(events: Iterable[Event]) -> list[Event]:
    """Join consecutive pieces of one body, so that the result does not depend on how the bytes were split."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Data) and isinstance(last, Data) and last.stream == event.stream and not last.end:
            result[-1] = Data(event.stream, last.data + event.data, event.end)
        else:
            result.append(event)
    return result


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


# --- the server side -------------------------------------------------------------------------------------------------


def taken(server: Http2Server, limit: int = 1 << 20) -> bytes:
    """All bytes that the server can send now."""
    data = bytearray()
    while parts := server.take_parts(limit):
        data += b"".join(parts)
    return bytes(data)


def replies(server: Http2Server, limit: int = 1 << 20) -> list[tuple[int, int, int, bytes]]:
    """All frames that the server can send now, as (kind, flags, stream, payload)."""
    return split(taken(server, limit))


def new_server(**options: object) -> Http2Server:
    return Http2Server(**{"clock": time.monotonic, **options})  # type: ignore[arg-type]


def greeted(settings: dict[int, int] | None = None, **options: object) -> Http2Server:
    """A server that has received the client's preface and has nothing left to send."""
    server = new_server(**options)
    assert server.feed(frames.PREFACE + frames.settings(settings or {})) == []
    taken(server)
    return server


def request(number: int, body: bytes | None = None, end: bool = True, block: bytes = BLOCK) -> bytes:
    """The frames of a request."""
    if body is None:
        return frames.headers(number, block, end)
    return frames.headers(number, block, False) + frames.frame(frames.DATA, int(end), number, body)


def h2_client() -> H2Connection:
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.initiate_connection()
    return connection


def plain(events: Iterable[ServerEvent]) -> list[ServerEvent]:
    """The events without what depends on how the bytes were split: bodies as single events of plain bytes."""
    result: list[ServerEvent] = []
    for event in events:
        pieces: list[ServerEvent] = [event]
        if isinstance(event, RequestHeaders):
            pieces = [
                RequestHeaders(event.stream, event.headers, False),
                RequestData(event.stream, event.data, event.end),
            ]
        for piece in pieces:
            last = result[-1] if result else None
            if isinstance(piece, RequestData) and isinstance(last, RequestData) and last.stream == piece.stream:
                result[-1] = RequestData(piece.stream, bytes(last.data) + bytes(piece.data), piece.end)
            elif isinstance(piece, RequestData):
                result.append(RequestData(piece.stream, bytes(piece.data), piece.end))
            else:
                result.append(piece)
    return result


# --- violations ------------------------------------------------------------------------------------------------------

_PAD_HEADERS, _PRIORITY_HEADERS = frames.END_HEADERS | frames.PADDED, frames.END_HEADERS | frames.PRIORITIZED


def violations(open: int) -> list[tuple[bytes, int, str]]:
    """What breaks a connection whichever side sends it: the bytes, the code, and words of the message.

    `open`: a stream on which headers may come; a client's has sent its request, a server's is new.
    """
    frame, settings = frames.frame, frames.settings
    protocol, size, flow, calm = (
        frames.PROTOCOL_ERROR, frames.FRAME_SIZE_ERROR, frames.FLOW_CONTROL_ERROR, frames.ENHANCE_YOUR_CALM,
    )  # fmt: skip
    begun = frame(frames.HEADERS, 0, open, OK)
    return [
        (frame(frames.HEADERS, 4, 0, OK), protocol, "HEADERS on stream 0"),
        (frame(frames.HEADERS, 4, 2, OK), protocol, "HEADERS on stream 2, which was never opened"),
        (frame(frames.DATA, 0, 0, b"x"), protocol, "DATA on stream 0"),
        (frame(frames.DATA, 0, 99, b"x"), protocol, "DATA on stream 99, which was never opened"),
        (frames.rst_stream(0, 0), protocol, "RST_STREAM on stream 0"),
        (frames.rst_stream(99, 0), protocol, "RST_STREAM on stream 99, which was never opened"),
        (frame(frames.RST_STREAM, 0, 1, b"\0"), size, "RST_STREAM with a payload of 1 bytes"),
        (frames.window_update(99, 1), protocol, "WINDOW_UPDATE on stream 99, which was never opened"),
        (frames.window_update(0, 0), protocol, "WINDOW_UPDATE of 0"),
        (frames.window_update(0, 2**31 - 1), flow, "the connection's window beyond 2^31-1"),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\0"), size, "WINDOW_UPDATE with a payload of 1 bytes"),
        (frame(frames.PING, 0, 0, b"short"), size, "PING with a payload of 5 bytes"),
        (frame(frames.PING, 0, 1, bytes(8)), protocol, "PING on stream 1"),
        (frame(frames.GOAWAY, 0, 1, bytes(8)), protocol, "GOAWAY on stream 1"),
        (frame(frames.GOAWAY, 0, 0, bytes(7)), size, "GOAWAY with a payload of 7 bytes"),
        (frame(frames.SETTINGS, 0, 1), protocol, "SETTINGS on stream 1"),
        (frame(frames.SETTINGS, 0, 0, bytes(5)), size, "SETTINGS with a payload of 5 bytes"),
        (frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), size, "SETTINGS with a payload of 6 bytes"),
        (frame(frames.SETTINGS, 0, 0, bytes(6 * 101)), calm, "101 settings in one frame"),
        (settings({frames.ENABLE_PUSH: 2}), protocol, "ENABLE_PUSH to 2"),
        (settings({frames.INITIAL_WINDOW_SIZE: 2**31}), flow, "INITIAL_WINDOW_SIZE to"),
        (settings({frames.MAX_FRAME_SIZE: 16_383}), protocol, "MAX_FRAME_SIZE to 16383"),
        (settings({frames.MAX_FRAME_SIZE: 2**24}), protocol, "MAX_FRAME_SIZE to 16777216"),
        (frame(frames.PUSH_PROMISE, 4, 1, bytes(4) + OK), protocol, "PUSH_PROMISE although push is disabled"),
        (frame(frames.PRIORITY, 0, 0, bytes(5)), protocol, "PRIORITY on stream 0"),
        (frame(frames.CONTINUATION, 4, 1, OK), protocol, "without HEADERS before it"),
        (begun + frame(frames.DATA, 0, open), protocol, f"DATA on stream {open} inside the headers of stream {open}"),
        (begun + frame(frames.CONTINUATION, 4, 3), protocol, "CONTINUATION on stream 3 inside"),
        (begun + frame(0xB0, 0, 1), protocol, "unknown type 0xb0 on stream 1 inside"),
        (begun + frame(frames.CONTINUATION, 0, open) * 100, calm, "are too long"),
        (begun + frame(frames.CONTINUATION, 0, open, bytes(10**6)), calm, "too long: 1000"),
        (frame(frames.HEADERS, 4, open, bytes(10**6)), calm, "header block of 1000000 bytes"),
        (frame(frames.HEADERS, 4, open, b"\xff"), frames.COMPRESSION_ERROR, "cannot be decoded: the block ends"),
        (frame(frames.HEADERS, 4, open, b"\xc0"), frames.COMPRESSION_ERROR, "reference to entry 64"),
        (frame(frames.HEADERS, 4, open, b"\x3f\xe2\x1f"), frames.COMPRESSION_ERROR, "a table size update to 4097"),
        (frame(frames.HEADERS, _PAD_HEADERS, open), size, "empty HEADERS that is flagged"),
        (frame(frames.HEADERS, _PAD_HEADERS, open, b"\x01"), protocol, "HEADERS with more padding"),
        (frame(frames.HEADERS, _PRIORITY_HEADERS, open, bytes(4)), size, "too short for their priority"),
        (b"\x10\0\1\0\0\0\0\0\1", size, "of 1048577 bytes, but at most 1048576 are"),
        (frame(frames.PING, 0, 0, bytes(8)) * 10_001, calm, "without reading any"),
    ]
