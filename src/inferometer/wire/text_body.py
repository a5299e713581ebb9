"""Bodies that carry generated text, streamed as server-sent events or whole. What differs between APIs is an `Extractor`.

A complete response without any token is the failure `empty`, unless the server's usage says that it generated some: a model may
end at once, or spend all tokens on reasoning that the server does not show.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import msgspec

from inferometer.types import Fail, Received
from inferometer.wire import sse
from inferometer.wire.failures import MALFORMED, bounded
from inferometer.wire.http1 import BodyDecoder, error_message, not_json

_MAX_HEAD = 4096
"""Bytes of a body that is not an event stream that are kept for its failure."""


def empty(into: Received, reason: str = "finish_reason", count: str = "completion_tokens") -> Fail | None:
    """The failure of a complete response without a token, unless the server counted some. `reason` and `count` are the API's names."""
    generated = -1 if into.usage is None else into.usage.n_out
    if generated > 0:
        return None
    reported = "no usage" if generated < 0 else f"{count} {generated}"
    return Fail("empty", bounded(f"{reason} {into.finish_reason or 'missing'}, {reported}"))


class Extractor(msgspec.Struct, frozen=True):
    """What the JSON of an API means. The functions raise one of MALFORMED if it is not what the API has."""

    event: Callable[[bytes, int, Received], Fail | None]
    """Take the data of an event, which arrived at an instant; return the failure if it reports one."""
    whole: Callable[[bytes, Received], Fail | None]
    """Take a whole response; return the failure if it is one."""
    empty: Callable[[Received], Fail | None] = empty
    """The failure of a complete response that brought no token."""
    has_end: bool = True
    """A stream says when it is complete. False: it ends with the body."""


def body_decoder(extractor: Extractor, streamed: bool) -> BodyDecoder:
    """Make the decoder of one response body."""
    return StreamedBody(extractor) if streamed else WholeBody(extractor)


class StreamedBody:
    """The body of a streamed response."""

    __slots__ = ("_at", "_extractor", "_head", "_is_start", "_rest")

    is_stream = True

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor
        self.reset()

    def reset(self) -> None:
        self._rest: list[bytes] = []  # what follows the last complete event
        self._is_start = True
        self._at = 0  # when the last piece arrived
        self._head = b""  # the start of a body that is not an event stream, for the failure

    def feed(self, pieces: Sequence[bytes], stamps: Sequence[int], into: Received) -> Fail | None:
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._at = stamps[-1] if stamps else self._at
        if not into.messages and len(self._head) < _MAX_HEAD:
            self._head += data
        before = self._rest[-1][-1:] if self._rest else b""
        end = sse.complete(before + data) - len(before)
        rest = data[max(end, 0) :]
        fail = None
        if end > 0:
            start = b"".join(self._rest)
            names, messages, ends = sse.messages(start + data[:end], self._is_start)
            own_ends = list(accumulate(map(len, pieces), initial=len(start)))
            if ends != own_ends[1:]:  # usually, each piece is an event
                stamps = [stamps[bisect_left(own_ends, at) - 1] for at in ends]
            self._rest, self._is_start = [], False
            fail = self._take(names, messages, stamps, into)
        if rest:
            self._rest.append(rest)
        return fail

    def _take(
        self, names: Iterable[bytes], messages: list[bytes], stamps: Sequence[int], into: Received
    ) -> Fail | None:
        """Take events with the instants of their arrival."""
        event = self._extractor.event
        into.messages += len(messages)
        for name, data, at in zip(names, messages, stamps, strict=False):
            if name == b"error":
                return Fail("error_frame", error_message(data))
            try:
                fail = event(data, at, into)
            except MALFORMED as error:
                if data != b"[DONE]":
                    return not_json(data, str(error))
                into.is_ended = True
            else:
                if fail is not None:
                    return fail
        return None

    def finish(self, into: Received) -> Fail | None:
        """Take the event that the end of the stream cut off before its blank line, if any."""
        names, messages, _ = sse.messages(b"".join(self._rest) + b"\n\n", self._is_start)
        fail = self._take(names, messages, [self._at] * len(messages), into)
        if fail is not None:
            return fail
        if not into.messages:
            return self._not_a_stream()
        if self._extractor.has_end and not into.is_ended:
            return Fail("truncated", "")
        return None if into.texts else self._extractor.empty(into)

    def _not_a_stream(self) -> Fail:
        """The failure of a body that is not the expected event stream."""
        head = self._head
        if not head.strip():
            return Fail("truncated", "the body is empty")
        try:
            fail = self._extractor.whole(head, Received())
        except MALFORMED as error:
            return not_json(head, str(error))
        return Fail("not_streamed", "") if fail is None else Fail("error_body", error_message(head))


class WholeBody:
    """The body of a response that is not streamed."""

    __slots__ = ("_extractor", "_pieces")

    is_stream = False

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor
        self._pieces: list[bytes] = []

    def reset(self) -> None:
        self._pieces.clear()

    @property
    def content(self) -> bytes:
        return b"".join(self._pieces)

    def feed(self, pieces: Sequence[bytes], stamps: Sequence[int], into: Received) -> Fail | None:
        self._pieces += pieces
        return None

    def finish(self, into: Received) -> Fail | None:
        body = self.content
        if not body.strip():
            return Fail("truncated", "the body is empty")
        try:
            fail = self._extractor.whole(body, into)
        except MALFORMED as error:
            return not_json(body, str(error))
        return fail if fail is not None or into.texts else self._extractor.empty(into)
