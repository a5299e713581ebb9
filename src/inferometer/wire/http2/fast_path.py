"""Answers that come whole in one read and look like one before them.

A server's answers to unary calls are the same frames again and again, HEADERS, DATA and the trailers' HEADERS, of the same lengths
and with the same header blocks: only the stream's number and the message differ. The layout of the first is remembered;
to take the next apart, and to see that all but those two is as it was, is then one `unpack` and four comparisons.

A layout holds for as long as its header blocks mean what they did: whoever reads a block that is not known forgets them all.
"""

from collections.abc import Callable, Container
from struct import Struct

import msgspec

from inferometer.wire.http2.events import Data, Event, Fields, Headers
from inferometer.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, unpack_head

_MAX_LEARNT = 64
"""In all, for one connection: a server whose answers are never alike would have every one of them learnt in vain."""


class Layout(msgspec.Struct, frozen=True, gc=False):
    unpack: Callable[[bytes], tuple[bytes, int, bytes, int, bytes, bytes, int, bytes]]
    start: bytes
    """The head of the HEADERS up to the stream's number,"""
    middle: bytes
    """their block and so much of the head of the DATA,"""
    end: bytes
    """of the trailers' head,"""
    block: bytes
    """and their block."""
    headers: Fields
    trailers: Fields


class Layouts:
    """One connection's, by the size of the answer."""

    __slots__ = ("_left", "by_size")

    def __init__(self) -> None:
        self.by_size: dict[int, Layout] = {}
        self._left = _MAX_LEARNT

    def learn(self, data: bytes, events: list[Event], known: Container[bytes]) -> None:
        """`data`, which said `events`, if that is all of an answer and nothing else, and its blocks are among the `known`: the
        others change what blocks mean."""
        if len(events) != 3 or not self._left:
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
        form = Struct(f">5sL{first + 5}sL{second}s5sL{third}s")
        start, _, middle, _, _, end, _, block = form.unpack(data)
        if middle[:first] not in known or block not in known:
            return
        self._left -= 1
        self.by_size[len(data)] = Layout(form.unpack, start, middle, end, block, headers.headers, trailers.headers)


_KINDS = [(HEADERS, END_HEADERS), (DATA, 0), (HEADERS, END_HEADERS | END_STREAM)]
