"""One request and its complete response, over HTTP/1.1 or gRPC: a round trip (roundtrip.py) whose response is kept.

Used before and after a run for metadata, statistics, reflection and the like. Raises UserError if there is no response; any
response, whatever its status, is a Reply.
"""

from collections.abc import Mapping, Sequence

import httptools
import msgspec

from inferometer.errors import UserError
from inferometer.probe.connect import Peer
from inferometer.probe.roundtrip import Instants, or_with_tls, over_grpc, over_http
from inferometer.types import End, Event, Fail
from inferometer.units import format_bytes, format_seconds
from inferometer.wire.failures import bounded, meaning
from inferometer.wire.grpc import GrpcResponse, header_block
from inferometer.wire.grpc_framing import framed
from inferometer.wire.http1 import request_head

_SHOWN = 60
"""Bytes shown of a response that is not HTTP/1.1."""


class TooLarge(UserError):  # noqa: N818 - not an error of the server
    """The response is larger than the caller allows."""


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
    max_size: int = 0,
) -> Reply:
    """Send one request, on its own connection unless the peer keeps connections open.

    `deadline`: seconds from the send to the end of the response; 0: no limit but the peer's. `max_size`: bytes of the response's
    body, which is not read any further than that; 0: no limit.
    """
    target = peer.target
    length = {"Content-Length": str(len(body))} if body or method == "POST" else {}
    close = {"Connection": "close"} if peer.kept is None else {}
    head = request_head(method, target.prefix + path, target.authority, {**headers, **length, **close})
    response = _HttpResponse()
    pieces: list[tuple[int, bytes]] = []
    size = 0

    def keep(at: int, _: Sequence[Event]) -> None:
        nonlocal size
        size += sum(map(len, response.pieces))
        if max_size and max(size, response.content_length) > max_size:
            raise TooLarge(f"{target.url}: {method} {path}: the response is larger than {format_bytes(max_size)}")
        pieces.extend((at, piece) for piece in response.pieces)
        response.pieces.clear()

    instants, fail = over_http(peer, head + b"\r\n" + body, response, keep, deadline)
    if fail is not None and fail.code == "total_timeout":
        raise UserError(f"{target.url}: {method} {path}: timed out after {format_seconds(deadline)}")
    if fail is not None:
        remedy = _REMEDIES[fail.code]
        raise UserError(
            f"{target.url}: {method} {path}: {fail.message or meaning(fail.code)}",
            or_with_tls(remedy, target) if fail.code == "closed" else remedy,
        )
    return Reply(**msgspec.structs.asdict(instants), status=response.status, headers=response.headers, pieces=pieces)


_REMEDIES = {
    "closed": "check that it is an HTTP server",
    "cut_short": "check the server's log",
    "malformed_http": "check the port",
}


class _HttpResponse:
    """A decoder (types.Decoder) that keeps status, headers and body, whatever the status. Parsing is done by httptools."""

    text = ""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._start = b""
        self._is_complete = self._keeps_alive = False

    def feed(self, data: bytes) -> Sequence[Event]:
        if len(self._start) < _SHOWN:
            self._start += data[:_SHOWN]
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None  # raised by a callback, such as KeyboardInterrupt
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._is_complete:
                shown = bounded(self._start[:_SHOWN].decode("latin-1"))
                return (Fail("malformed_http", f"the response is not HTTP/1.1: it starts with {shown!r}"),)
        return (End(self._keeps_alive),) if self._is_complete else ()

    def eof(self) -> Sequence[Event]:
        """The server closed: the regular end of a response without a length, and an error for any other."""
        if not self._start:
            return (Fail("closed", ""),)
        if not self.status or {"content-length", "transfer-encoding"} & self.headers.keys():
            return (Fail("cut_short", ""),)
        return (End(keep_alive=False),)

    @property
    def content_length(self) -> int:
        """The length that the server announced; 0: none."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isascii() and length.isdigit() else 0

    # --- called by httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self.status = status if status >= 200 else 0

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_message_complete(self) -> None:
        self._is_complete = self.status > 0
        self._keeps_alive = self._parser.should_keep_alive()
        if not self._is_complete:  # 100 Continue, 103 Early Hints: the response is still to come
            self.headers.clear()


# --- gRPC ------------------------------------------------------------------------------------------------------------


def grpc(
    peer: Peer,
    path: str,
    messages: Sequence[bytes],
    metadata: Mapping[str, str],
    deadline: float = 0,
    compression: str = "none",
) -> Reply:
    """Make one call; the response's messages are in `pieces`, unframed."""
    target = peer.target
    block = header_block(path, target.authority, target.tls, metadata, deadline, compression)
    body = b"".join(framed(message, compression) for message in messages)
    kept: list[bytes] = []
    response = _WithHeaders(streamed=True, kept=kept)
    pieces: list[tuple[int, bytes]] = []

    def keep(at: int, _: Sequence[Event]) -> None:
        pieces.extend((at, message) for message in kept)
        kept.clear()

    instants, fail = over_grpc(peer, block, body, response, keep, deadline)
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
