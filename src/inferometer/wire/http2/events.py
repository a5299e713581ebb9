"""Events of an HTTP/2 connection, and Http2Error for violations of the protocol by the peer."""

from typing import Any

import msgspec

Fields = tuple[tuple[bytes, bytes], ...]


class Headers(msgspec.Struct, frozen=True, gc=False):
    """The headers of a response (informational ones, 1xx, are not reported), or the trailers of a response or a request."""

    stream: int
    headers: Fields
    end: bool


class Data(msgspec.Struct, frozen=True, gc=False):
    """A piece of a response body, without padding. A frame that arrives in several reads yields several pieces."""

    stream: int
    data: bytes
    end: bool


class Reset(msgspec.Struct, frozen=True, gc=False):
    """The stream ended before its response was complete: the peer reset it or violated the protocol on it."""

    stream: int
    code: int
    message: str
    refused: bool
    """Whether the server certainly did not process the request, so that it is safe to send it again elsewhere."""


class GoAway(msgspec.Struct, frozen=True, gc=False):
    """The server accepts no new requests on this connection.

    Streams in flight up to the id `last` still finish; a Reset event follows for each of the others.
    """

    last: int
    code: int
    debug: bytes


class Response(msgspec.Struct, frozen=True, gc=False):
    """A complete response that arrived in one read: headers, one DATA frame, and trailers."""

    stream: int
    headers: Fields
    data: bytes
    trailers: Fields


Event = Headers | Data | Response | Reset | GoAway


class RequestHeaders(msgspec.Struct, gc=False):
    """A new request. If its complete body arrived in the same read, `end` is set and `data` has the body."""

    stream: int
    headers: Fields
    """Equal header lists are usually the same object, so that what was derived from one can be looked up."""
    end: bool
    data: bytes | memoryview = b""


class HeadersTooLarge(msgspec.Struct, frozen=True, gc=False):
    """A request whose header list is larger than the limit. The stream is open: respond to it, or reset it."""

    stream: int
    message: str


class RequestData(msgspec.Struct, frozen=True, gc=False):
    """A piece of a request body, without padding. A frame that arrives in several reads yields several pieces.

    A large piece is a view of the bytes passed to `feed`.
    """

    stream: int
    data: bytes | memoryview
    end: bool


ServerEvent = RequestHeaders | HeadersTooLarge | RequestData | Headers | Reset
"""`Headers` are the trailers of a request, which end it."""


class Http2Error(Exception):
    """A connection error, with a message that describes the violation. The connection cannot be used any more."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.events: list[Any] = []
        """The events that the same bytes contained before the error."""
