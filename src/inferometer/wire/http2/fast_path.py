"""A fast path for responses that arrive complete in one read and have the same layout as an earlier one.

A server's responses to unary calls are the same frames again and again: HEADERS, DATA and the HEADERS of the trailers, with
the same lengths and header blocks. Only the stream id and the message differ. The layout of the first response is stored;
parsing the next one, and checking that everything else is unchanged, then takes one `unpack` and four comparisons.

A layout is valid as long as its header blocks keep their meaning: all layouts are dropped when an unknown block is read.
"""

from collections.abc import Callable, Container
from struct import Struct

import msgspec

from inferometer.wire.http2.events import Data, Event, Fields, Headers
from inferometer.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, unpack_head

_MAX_LEARNED = 64
"""Layouts learned per connection in total: learning is wasted on a server whose responses are never alike."""


class Layout(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a response other than its stream id and message, in the order of `unpack`."""

    unpack: Callable[[bytes], tuple[bytes, int, bytes, int, bytes, bytes, int, bytes]]
    start: bytes
    """The head of the HEADERS frame up to the stream id."""
    middle: bytes
    """The header block, and the head of the DATA frame up to the stream id."""
    end: bytes
    """The head of the trailers' HEADERS frame up to the stream id."""
    block: bytes
    """The trailers' header block."""
    headers: Fields
    trailers: Fields


class Layouts:
    """The layouts of one connection, by the size of the response."""

    __slots__ = ("_remaining", "by_size")

    def __init__(self) -> None:
        self.by_size: dict[int, Layout] = {}
        self._remaining = _MAX_LEARNED

    def learn(self, data: bytes, events: list[Event], known: Container[bytes]) -> None:
        """Store the layout of `data`, which decoded to `events`, if it is exactly one complete response.

        Its header blocks must be among the `known` ones: other blocks change the dynamic table and thereby the meaning of
        later blocks.
        """
        if len(events) != 3 or not self._remaining:
            return
        headers, body, trailers = events
        if not (
            isinstance(headers, Headers) and isinstance(body, Data) and isinstance(trailers, Headers) and trailers.end
        ):
            return
        kinds, numbers, lengths, at = [], set(), [], 0
        while len(data) - at >= HEAD:
            word, flags, number = unpack_head(data, at)
            kinds.append((word & 0xFF, flags))
            numbers.add(number)
            lengths.append(word >> 8)
            at += HEAD + lengths[-1]
        if at != len(data) or numbers != {headers.stream} or kinds != _KINDS:
            return
        first, second, third = lengths
        layout = Struct(f">5sL{first + 5}sL{second}s5sL{third}s")
        start, _, middle, _, _, end, _, block = layout.unpack(data)
        if middle[:first] not in known or block not in known:
            return
        self._remaining -= 1
        self.by_size[len(data)] = Layout(layout.unpack, start, middle, end, block, headers.headers, trailers.headers)


_KINDS = [(HEADERS, END_HEADERS), (DATA, 0), (HEADERS, END_HEADERS | END_STREAM)]
