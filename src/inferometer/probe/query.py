"""One request and its complete response, over HTTP/1.1 or gRPC: a round trip (roundtrip.py) whose response is kept.

Used before and after a run for metadata, statistics, reflection and the like. Raises UserError if there is no response; any
response, whatever its status, is a Reply.
"""

from collections.abc import Mapping, Sequence

import msgspec

from inferometer.errors import UserError
from inferometer.probe.connect import Peer
from inferometer.probe.roundtrip import Instants, TooLarge, or_with_tls, over_grpc, over_http
from inferometer.types import End, Event, Fail
from inferometer.units import format_seconds
from inferometer.wire.failures import meaning
from inferometer.wire.grpc import GrpcResponse, header_block
from inferometer.wire.grpc_framing import framed
from inferometer.wire.http1 import ResponseDecoder, request_head
from inferometer.wire.kserve.http import CountedResponse

_MAX_SIZE = 16 << 20
"""Maximum bytes of a response, unless the caller sets another limit: what servers say about themselves is much shorter."""


class Reply(Instants, kw_only=True):
    """A response with its instants."""

    status: int
    headers: dict[str, str]
    """By lower-case name; over gRPC, including the trailers."""
    pieces: list[tuple[int, bytes]]
    """Pieces of the body (HTTP) or whole messages (gRPC), with the time of arrival."""
    fail: Fail | None = None
    """gRPC: why the call failed."""

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def sent_bytes(self) -> int:
        return self.bytes_out


# --- HTTP/1.1 --------------------------------------------------------------------------------------------------------


def http(
    peer: Peer,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    deadline: float = 0,
    max_size: int = _MAX_SIZE,
) -> Reply:
    """Send one request, on its own connection unless the peer keeps connections open.

    `deadline`: seconds from the send to the end of the response; 0: twice what one read may take. `max_size`: bytes of the response,
    which is not read any further than that. Raises TooLarge if there are more.
    """
    target = peer.target
    peer = msgspec.structs.replace(peer, max_size=max_size)
    limit = deadline or 2 * peer.timeout
    length = {"Content-Length": str(len(body))} if body or method == "POST" else {}
    close = {"Connection": "close"} if peer.kept is None else {}
    head = request_head(method, target.prefix + path, target.authority, {**headers, **length, **close})
    response = _HttpResponse()
    pieces: list[tuple[int, bytes]] = []

    def keep(at: int, _: Sequence[Event]) -> None:
        if response.content_length > max_size:
            raise TooLarge(peer)
        pieces.extend((at, piece) for piece in response.pieces)
        response.pieces.clear()

    instants, fail = over_http(peer, head + b"\r\n" + body, response, keep, limit)
    if fail is not None and fail.code == "total_timeout":
        raise UserError(
            f"{target.url}: {method} {path}: timed out after {format_seconds(limit)}",
            "" if deadline else "check that the server ends its responses, or raise {server.timeouts.connect}",
        )
    if fail is not None:
        remedy = _REMEDIES[fail.code]
        raise UserError(
            f"{target.url}: {method} {path}: {': '.join(filter(None, (meaning(fail.code), fail.message)))}",
            or_with_tls(remedy, target) if fail.code == "closed" else remedy,
        )
    return Reply(**msgspec.structs.asdict(instants), status=response.status, headers=response.headers, pieces=pieces)


_REMEDIES = {
    "closed": "check that it is an HTTP server",
    "cut_short": "check the server's log",
    "malformed_http": "check the port",
}


class _HttpResponse(ResponseDecoder):
    """Keeps headers and body, whatever the status."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        super().__init__(CountedResponse())

    def reset(self) -> None:
        super().reset()
        self.headers.clear()
        self.pieces.clear()

    @property
    def content_length(self) -> int:
        """The length that the server announced; 0: none."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isascii() and length.isdigit() else 0

    def _decode(self, stamps: list[int]) -> None:
        self.pieces += self._pieces
        self._pieces.clear()

    def _ended(self, keep_alive: bool) -> End:
        return End(keep_alive)

    # --- called by httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.status:  # 100 Continue, 103 Early Hints: the response is still to come
            self.headers.clear()


# --- gRPC ------------------------------------------------------------------------------------------------------------


def grpc(
    peer: Peer,
    path: str,
    messages: Sequence[bytes],
    metadata: Mapping[str, str],
    deadline: float = 0,
    compression: str = "none",
    max_size: int = _MAX_SIZE,
) -> Reply:
    """Make one call; the response's messages are in `pieces`, unframed. The limits are those of `http`."""
    target = peer.target
    block = header_block(path, target.authority, target.tls, metadata, deadline, compression)
    body = b"".join(framed(message, compression) for message in messages)
    kept: list[bytes] = []
    response = _WithHeaders(streamed=True, kept=kept)
    pieces: list[tuple[int, bytes]] = []

    def keep(at: int, _: Sequence[Event]) -> None:
        pieces.extend((at, message) for message in kept)
        kept.clear()

    peer = msgspec.structs.replace(peer, max_size=max_size)
    instants, fail = over_grpc(peer, block, body, response, keep, deadline or 2 * peer.timeout)
    if fail is not None and fail.code == "not_grpc":
        raise UserError(f"{target.url}: {fail.message}: it does not speak gRPC", "check the port and the URL's scheme")
    steps = msgspec.structs.asdict(instants)
    return Reply(**steps, status=response.status, headers=response.fields, pieces=pieces, fail=fail)


class _WithHeaders(GrpcResponse, gc=True):
    """A decoder that keeps the headers and trailers."""

    fields: dict[str, str] = msgspec.field(default_factory=dict)

    def headers(self, headers: tuple[tuple[bytes, bytes], ...], end: bool) -> Sequence[Event]:
        self.fields |= {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        return super().headers(headers, end)
