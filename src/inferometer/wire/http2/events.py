"""What a server said (events), and what it did wrong (Http2Error)."""

import msgspec

Fields = tuple[tuple[bytes, bytes], ...]


class Headers(msgspec.Struct, frozen=True, gc=False):
    """An answer's headers or, after them, its trailers. Informational (1xx) headers are not reported."""

    stream: int
    headers: Fields
    end: bool


class Data(msgspec.Struct, frozen=True, gc=False):
    """A piece of an answer's body, without padding. A frame that arrives in parts is as many pieces."""

    stream: int
    data: bytes
    end: bool


class Reset(msgspec.Struct, frozen=True, gc=False):
    """The stream ended without its answer being complete: the server gave it up, or broke the rules on it."""

    stream: int
    code: int
    message: str
    refused: bool
    """The server certainly did nothing for this request: it is safe to send it elsewhere."""


class GoAway(msgspec.Struct, frozen=True, gc=False):
    """No new requests on this connection; those in flight up to `last` finish. A Reset follows for each of the others."""

    last: int
    code: int
    debug: bytes


Event = Headers | Data | Reset | GoAway


class Http2Error(Exception):
    """A connection error: what the server did wrong, in words. The connection is of no more use."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.events: list[Event] = []
        """What the same bytes said before they went wrong."""
