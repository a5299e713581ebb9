"""HTTP/1.1, client side: request heads, and the framing of responses (parsed by httptools).

The body of a response goes to a `BodyDecoder`, which interprets it: as many pieces at once as there are, each with its stamp. One
`ResponseDecoder` serves a connection for its whole lifetime: `reset` prepares it for the next response.
"""

import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import httptools

from inferometer.types import End, Fail, Received
from inferometer.units import format_bytes
from inferometer.wire import server_timing
from inferometer.wire.compression import DecompressedBody, start_of
from inferometer.wire.failures import MALFORMED, PAGE, bounded, excerpt, is_tls
from inferometer.wire.target import Target

_MAX_KEPT = 4096
"""Bytes of an error response that are kept for its message."""
_PLAIN = frozenset(b"{deri: \t\r\n\xef")
"""First bytes of JSON objects and of event streams, but not of compressed data: the head is searched for Content-Encoding only after others."""
_MAX_HEAD = 1 << 20
"""Maximum bytes before the body of a response, and of the first piece of it."""


HTTP2 = "the server speaks HTTP/2 (gRPC?), not HTTP/1.1"
TLS = "the server speaks TLS, not plain HTTP/1.1"
FRAME_HEAD = 9
"""Number of bytes that `is_http2` needs to decide."""
_SETTINGS = 4

ID = b"%012x"
"""The end of an X-Request-Id: the number of the request, in hexadecimal, because those of later turns are large."""

_END_KEPT, _END = End(keep_alive=True), End(keep_alive=False)


_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r\n]*chunked", re.IGNORECASE)
_TIMING = re.compile(rb"\nserver-timing:", re.IGNORECASE)
_FRAMED = re.compile(rb"\r\n(content-length|transfer-encoding):", re.IGNORECASE)


class BodyDecoder(Protocol):
    """Interprets the body of a response with status 200. One that decompresses it has an attribute `reads_compressed`."""

    is_stream: bool
    """The body is a stream of events, most of which come alone."""

    def reset(self) -> None: ...

    def feed(self, pieces: Sequence[bytes], stamps: Sequence[int], into: Received) -> Fail | None:
        """Take pieces of the body, and when each arrived. Return the failure if the response is one."""

    def finish(self, into: Received) -> Fail | None:
        """The body is complete: take what is left, and return the reason if the response is a failure."""


def is_http2(start: bytes) -> bool:
    """Whether the bytes begin with a SETTINGS frame on stream 0."""
    return len(start) >= FRAME_HEAD and start[3] == _SETTINGS and start[5:FRAME_HEAD] == bytes(4)


def request_head(method: str, path: str, host: str, headers: Mapping[str, str]) -> bytes:
    """Encode the request line and headers, without the blank line that ends them."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def id_prefix(tag: str) -> str:
    """The X-Request-Id of a run's requests up to the request's own ID: a UUID, because some servers refuse anything else."""
    digest = hashlib.sha256(tag.encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[12:15]}-8{digest[15:18]}-"


def tail(headers: Mapping[str, str], body: bytes) -> bytes:
    """Encode what follows a request's id: the remaining headers, and the body."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"\r\n%bContent-Length: %d\r\n\r\n%b" % (lines.encode("latin-1"), len(body), body)


def heads(
    targets: Sequence[Target], path: str, headers: Mapping[str, str], tag: str, own: Mapping[str, str] = {}
) -> tuple[bytes, ...]:
    """Encode the heads of POST requests, one for each target, as `types.Calls` describes. `own` overrides `headers`.

    Each request has an X-Request-Id, which is unique to the run because some servers use it as a key and would mix up two runs
    that both count from 0.
    """
    own_names = {name.lower() for name in own}
    encoded = []
    for target in targets:
        credentials = {"Authorization": target.credentials} if target.credentials else {}
        shared = {n: value for n, value in (credentials | dict(headers)).items() if n.lower() not in own_names}
        head = request_head("POST", target.prefix + path, target.authority, shared | dict(own))
        encoded.append(head + f"X-Request-Id: {id_prefix(tag)}".encode())
    return tuple(encoded)


class ResponseDecoder:
    """Decodes the responses of one connection, one after another (types.Decoder)."""

    __slots__ = (
        *("_end", "_head", "_is_chunked", "_kept", "_length", "_parser", "_pieces"),
        *("_sink", "body", "encoding", "on_body", "received", "status"),
    )

    def __init__(self, body: BodyDecoder) -> None:
        self.body = body
        self.encoding = ""
        """How the latest compressed response was compressed; empty: none was."""
        self._pieces: list[bytes] = []  # pieces of the body that are not yet decoded
        self.on_body = self._pieces.append  # called by httptools
        self._parser = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self) -> None:
        """Prepare for the next response on the same connection."""
        self.received = Received()
        self.status = 0
        self._head = b""  # the bytes up to the end of the head
        self._is_chunked = False
        self._kept = b""  # the start of the body if the status is not 200
        self._end: bool | None = None  # when the response is complete: whether the connection stays open
        self._length = 0  # and how many of the pieces belong to it
        self._pieces.clear()
        self.body.reset()
        self._sink: BodyDecoder | None = None  # takes the body, as soon as there is one

    @property
    def text(self) -> str:
        return self.received.text

    @property
    def finish_reason(self) -> str | None:
        """Why the generation ended, if the API and the server say so."""
        return self.received.finish_reason

    def header(self, name: str) -> str:
        """The value of a header of the response; empty: it is not there."""
        return header(self._head, name)

    @property
    def ending(self) -> bytes:
        """The last bytes of a chunked body, from its first token on: until then, others want to know as soon as something arrives."""
        return b"\r\n\r\n" if self._is_chunked and self.received.arrivals and self.status == 200 else b""

    def feed(self, pieces: Sequence[bytes], stamps: Sequence[int]) -> End | Fail | None:
        feed_data, body, failure = self._parser.feed_data, self._pieces, None
        body_stamps: list[int] = []
        try:
            for data, at in zip(pieces, stamps, strict=True):
                if not self.status:
                    self._head += data
                    if len(self._head) > _MAX_HEAD:
                        return Fail("malformed_http", f"more than {format_bytes(_MAX_HEAD)} of headers")
                feed_data(data)
                new = len(body) - len(body_stamps)
                if new == 1:
                    body_stamps.append(at)
                elif new:
                    body_stamps += (at,) * new
        except httptools.HttpParserUpgrade:
            failure = Fail("malformed_http", "the server switched protocols")
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None  # raised by a callback, such as KeyboardInterrupt
        except httptools.HttpParserError as error:
            details = f"{error}; the response starts with {excerpt(self._head, 60)!r}"
            other_protocol = HTTP2 if is_http2(self._head) else TLS if is_tls(self._head) else ""
            failure = Fail("malformed_http", bounded(other_protocol or details))
        if self._end is not None:
            del body[self._length :]
        if body:
            own = self._decode((body_stamps + [stamps[-1]] * len(body))[: len(body)])
            if own is not None:
                return own
        return failure if self._end is None else self._ended(self._end)

    def _decode(self, stamps: list[int]) -> Fail | None:
        """Decode the pieces of the body that have arrived."""
        pieces = self._pieces
        try:
            if self.status == 200:
                if self._sink is None:
                    self._sink = self.body if pieces[0][0] in _PLAIN else self._decompressed()
                return self._sink.feed(pieces, stamps, self.received)
            self._kept += b"".join(pieces)[: _MAX_KEPT - len(self._kept)]
            return None
        finally:
            pieces.clear()

    def _decompressed(self) -> BodyDecoder:
        """The decoder of a body that does not start as text: its head may say that it is compressed."""
        encoding = self.header("content-encoding").lower()
        if encoding in ("", "identity") or hasattr(self.body, "reads_compressed"):
            return self.body
        self.encoding = encoding
        return DecompressedBody(encoding, self.body)

    def _ended(self, keep_alive: bool) -> End | Fail:
        """How a complete response ended."""
        if self.status != 200:
            after = self.header("retry-after")
            seconds = int(after) if after.isascii() and after.isdigit() and len(after) < 9 else 0
            return Fail(f"http_{self.status}", self._error(), keep_alive, seconds)
        failure = (self._sink or self.body).finish(self.received)
        if failure is None:
            return _END_KEPT if keep_alive else _END
        return Fail(failure.code, failure.message, keep_alive)

    def _error(self) -> str:
        """The message of a response that is an error, and what its headers say to do."""
        message = error_message(start_of(self.header("content-encoding").lower(), self._kept, _MAX_KEPT))
        notes = [f"{name}: {value}" for name in ("Location", "Retry-After") if (value := self.header(name))]
        return bounded(f"{message} ({', '.join(notes)})" if message and notes else message or ", ".join(notes))

    def eof(self) -> End | Fail:
        """Handle the server's close: it properly ends a response without a length and truncates any other."""
        if not self._head:
            return Fail("closed", "")
        if not self.status or _FRAMED.search(self._head):
            return Fail("cut_short", "")
        return self._ended(False)

    # --- called by httptools ---

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._end is None:  # after a 1xx (100 Continue ...) the response is still to come
            self.status = status
            self._is_chunked = self.body.is_stream and _CHUNKED.search(self._head) is not None

    def on_message_complete(self) -> None:
        if self.status and self._end is None:
            self._end = self._parser.should_keep_alive()  # false if the response ends with the connection
            self._length = len(self._pieces)


class TimedResponseDecoder(ResponseDecoder):
    """A ResponseDecoder that also reads the Server-Timing header. Other APIs should not pay for that."""

    __slots__ = ()

    def _ended(self, keep_alive: bool) -> End | Fail:
        if _TIMING.search(self._head):
            self.received.timing = server_timing.parse(header(self._head, "server-timing").encode())
        return super()._ended(keep_alive)


def header(head: bytes, name: str) -> str:
    """The value of a header in the bytes that a response starts with; empty: it is not there. Several lines of a name are one list."""
    while head.startswith(b"HTTP/1.1 1"):  # 103 Early Hints and the like come before the response
        head = head.partition(b"\r\n\r\n")[2]
    wanted = rb"\n%b:[ \t]*([^\r\n]*)" % re.escape(name.encode())
    lines = re.findall(wanted, head.partition(b"\r\n\r\n")[0], re.IGNORECASE)
    return b",".join(lines).decode("latin-1").strip()


def readable(body: bytes) -> str:
    """A body on one line; of a web page, its title or its text. `...` marks a cut, as in `excerpt`."""
    text = body[:_MAX_KEPT].decode("utf-8", "replace") + "..." * (len(body) >= _MAX_KEPT)
    if not text.lstrip().startswith("<"):
        return bounded(text)
    title = re.search(r"<title[^>]*>(.*?)</title", text, re.IGNORECASE | re.DOTALL)
    shown = title[1] if title else re.sub("<[^>]*>?", " ", text)
    return bounded(f"{PAGE}: {html.unescape(shown).strip()}").removesuffix(":")


def error_message(body: bytes) -> str:
    """Extract the message of an error body: OpenAI's error.message, FastAPI's detail, or the text itself."""
    try:
        tree = json.loads(body)
    except MALFORMED:
        return readable(body)
    for key in ("error", "detail", "message"):
        if isinstance(tree, dict) and tree.get(key):
            inner = tree[key]
            if isinstance(inner, dict) and isinstance(inner.get("message"), str):
                return bounded(inner["message"])
            return bounded(inner if isinstance(inner, str) else json.dumps(inner))
    return bounded(body.decode("utf-8", "replace"))


def not_json(body: bytes, error: str) -> Fail:
    """Describe a body, or the data of an event, that is not the expected JSON."""
    if body.lstrip()[:1] in (b"{", b"["):
        return Fail("malformed_json", bounded(f"{error}: {excerpt(body)}"))
    return Fail("not_json", readable(body))
