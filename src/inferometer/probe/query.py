"""A question and its whole answer, over HTTP/1.1 or gRPC: one exchange (roundtrip.py) whose answer is kept.

It serves what is asked before t=0 and after the run: metadata, statistics, reflection ... What keeps an answer from coming is a
UserError; what the server answers is a Reply.
"""

from collections.abc import Mapping, Sequence

import httptools
import msgspec

from inferometer.errors import UserError
from inferometer.probe.roundtrip import Instants, Peer, or_with_tls, over_grpc, over_http
from inferometer.types import End, Event, Fail
from inferometer.wire.failures import bounded, meaning
from inferometer.wire.grpc import GrpcResponse, framed, header_block
from inferometer.wire.http1 import request_head

_SHOWN = 60
"""Bytes of something that is no HTTP/1.1 which are shown."""


class Reply(Instants, kw_only=True):
    """An answer with its instants."""

    status: int
    headers: dict[str, str]
    """By lower-case name; gRPC: the trailers too."""
    pieces: list[tuple[int, bytes]]
    """What came when: pieces of the body (HTTP), or whole messages (gRPC)."""
    fail: Fail | None = None
    """gRPC: why the call failed."""

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def sent_bytes(self) -> int:
        return self.bytes_out


# --- HTTP/1.1 --------------------------------------------------------------------------------------------------------


def http(place: Peer, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Reply:
    """One request over a connection of its own."""
    target = place.target
    length = {"Content-Length": str(len(body))} if body or method == "POST" else {}
    head = request_head(method, target.prefix + path, target.authority, {**headers, **length, "Connection": "close"})
    answer = _WholeResponse()
    pieces: list[tuple[int, bytes]] = []

    def heard(at: int, _: Sequence[Event]) -> None:
        pieces.extend((at, piece) for piece in answer.pieces)
        answer.pieces.clear()

    instants, fail = over_http(place, head + b"\r\n" + body, answer, heard)
    if fail is not None:
        remedy = _REMEDIES[fail.code]
        raise UserError(
            f"{target.url}: {method} {path}: {fail.message or meaning(fail.code)}",
            or_with_tls(remedy, target) if fail.code == "closed" else remedy,
        )
    return Reply(**msgspec.structs.asdict(instants), status=answer.status, headers=answer.headers, pieces=pieces)


_REMEDIES = {
    "closed": "check that an HTTP server is there",
    "cut_short": "check the server's log",
    "malformed_http": "check the port",
}


class _WholeResponse:
    """A decoder (types.Decoder) that keeps status, headers and body, whatever the status. httptools parses."""

    text = ""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._start = b""
        self._is_complete = False

    def feed(self, data: bytes) -> Sequence[Event]:
        if len(self._start) < _SHOWN:
            self._start += data[:_SHOWN]
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._is_complete:
                shown = bounded(self._start[:_SHOWN].decode("latin-1"))
                return (Fail("malformed_http", f"that is no HTTP/1.1: it starts with {shown!r}"),)
        return (End(keep_alive=False),) if self._is_complete else ()

    def eof(self) -> Sequence[Event]:
        """The server closed: the proper end of an answer without a length, and a broken one of any other."""
        if not self._start:
            return (Fail("closed", ""),)
        if not self.status or {"content-length", "transfer-encoding"} & self.headers.keys():
            return (Fail("cut_short", ""),)
        return (End(keep_alive=False),)

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
        if not self._is_complete:  # 100 Continue, 103 Early Hints: the answer is still to come
            self.headers.clear()


# --- gRPC ------------------------------------------------------------------------------------------------------------


def grpc(
    place: Peer,
    path: str,
    messages: Sequence[bytes],
    metadata: Mapping[str, str],
    deadline: float = 0,
    compression: str = "none",
) -> Reply:
    """One call on a connection of its own; the answer's messages are in `pieces`, unpacked."""
    target = place.target
    block = header_block(path, target.authority, target.tls, metadata, deadline, compression)
    body = b"".join(framed(message, compression) for message in messages)
    kept: list[bytes] = []
    answer = _WithHeaders(streamed=True, kept=kept)
    pieces: list[tuple[int, bytes]] = []

    def heard(at: int, _: Sequence[Event]) -> None:
        pieces.extend((at, message) for message in kept)
        kept.clear()

    instants, fail = over_grpc(place, block, body, answer, heard, deadline)
    if fail is not None and fail.code == "not_grpc":
        raise UserError(f"{target.url}: {fail.message}: that is no gRPC", "check the port and the URL's scheme")
    told = msgspec.structs.asdict(instants)
    return Reply(**told, status=answer.status, headers=answer.fields, pieces=pieces, fail=fail)


class _WithHeaders(GrpcResponse, gc=True):
    """With the headers and trailers kept."""

    fields: dict[str, str] = msgspec.field(default_factory=dict)

    def headers(self, headers: tuple[tuple[bytes, bytes], ...], end: bool) -> Sequence[Event]:
        self.fields |= {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        return super().headers(headers, end)
