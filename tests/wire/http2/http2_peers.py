"""Helpers for the tests of HTTP/2: a server built with the h2 library, connections after their handshake, and lists of events."""

from collections.abc import Iterable
from itertools import pairwise

from h2.config import H2Configuration
from h2.connection import H2Connection

from inferometer.wire.http2 import Data, Event, Http2Client, encode, frames

BLOCK = encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
        (b":authority", b"127.0.0.1:8001"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
)
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
    data = b"".join(iter(lambda: client.take(limit), b""))
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
