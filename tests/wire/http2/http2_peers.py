"""What the tests of HTTP/2 share: a server made of the h2 library, a connection that is past its greetings, and events as lists."""

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
ANSWER = [(b":status", b"200"), (b"content-type", b"application/grpc")]
TRAILERS = [(b"grpc-status", b"0"), (b"grpc-message", b"")]
OK = encode(ANSWER)
END = encode(TRAILERS)


def server() -> H2Connection:
    connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    connection.initiate_connection()
    return connection


def pair(**options: int) -> tuple[Http2Client, H2Connection]:
    """A client and h2 as its server, greetings exchanged."""
    client, peer = Http2Client(**options), server()
    client.start()
    exchange(client, peer)
    return client, peer


def exchange(client: Http2Client, peer: H2Connection) -> tuple[list[Event], list[object]]:
    """Carry bytes both ways until there are no more: what the client and the server saw."""
    seen: list[Event] = []
    asked: list[object] = []
    while True:
        up = client.take()
        if up:
            asked += peer.receive_data(up)
        down = peer.data_to_send()
        if down:
            seen += client.feed(down)
        if not up and not down:
            return seen, asked


def greeted(settings: dict[int, int] | None = None, **options: int) -> Http2Client:
    """A client that has the server's SETTINGS, and nothing left to write."""
    client = Http2Client(**options)
    client.start()
    client.feed(frames.settings(settings or {}))
    while client.take():
        pass
    return client


def written(client: Http2Client, limit: int = 1 << 20) -> list[tuple[int, int, int, bytes]]:
    """All that the client has to write, as (kind, flags, stream, payload)."""
    data = b"".join(iter(lambda: client.take(limit), b""))
    found, at = [], 0
    while at < len(data):
        word, flags, stream = frames.unpack_head(data, at)
        stop = at + 9 + (word >> 8)
        assert stop <= len(data)
        found.append((word & 0xFF, flags, stream, data[at + 9 : stop]))
        at = stop
    return found


def joined(events: Iterable[Event]) -> list[Event]:
    """Pieces of one body that follow each other as one: what does not depend on how bytes were split."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Data) and isinstance(last, Data) and last.stream == event.stream and not last.end:
            found[-1] = Data(event.stream, last.data + event.data, event.end)
        else:
            found.append(event)
    return found


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]
