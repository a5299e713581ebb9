"""A request in flight, which becomes a row when it ends. Its first fields are those of records.ROW, in the same order."""

from collections.abc import Sequence

import msgspec

from inferometer.records import COUNTED_BY, ROW
from inferometer.types import End, Event, Fail, Received, ServerTiming, Tokens, Usage
from inferometer.units import format_bytes

_CHECK_EVERY = 1 << 20
"""Bytes of a response after which its size is checked again."""
_BYTES, _BYTES_EACH = 4 << 20, 16 << 10
_TOKENS, _TOKENS_EACH, _MOST_TOKENS = 4096, 16, 1 << 20
"""A response may be this long, and this much longer for each token that was requested; if none was, it may have `_MOST_TOKENS`."""
TOO_LARGE = "too_large"
_BY_SERVER = COUNTED_BY.index("server")


class Flight(msgspec.Struct, gc=False):
    id: int
    intended: int
    sent: int = 0
    first_byte: int = 0
    first_token: int = 0
    first_content: int = 0
    last_token: int = 0
    done: int = 0
    held: int = 0
    read_delay: int = -1
    queue: int = -1
    compute: int = -1
    server_total: int = -1
    rtt: int = -1
    wasted: int = 0
    bytes_in: int = 0
    chunk_start: int = 0
    session: int = -1
    chunk_count: int = 0
    bytes_out: int = 0
    n_in: int = -1
    n_out: int = -1
    n_want: int = 0
    cached: int = -1
    reasoning: int = -1
    first_tokens: int = -1
    streamed_tokens: int = -1
    turn: int = -1
    turns: int = -1
    stage: int = 0
    shard: int = 0
    url: int = 0
    class_: int = -1
    replica: int = -1
    status: int = 0
    failure: int = 0
    counted_by: int = 0
    in_counted_by: int = 0
    attempts: int = 0
    open_loop: int = 1
    # not part of the row
    user: int = -1
    """Closed loop: the user who sent it."""
    index: int = -1
    """The index of the shard's encoded request that it was made from, if it is still needed (sessions, checks)."""
    content: str = ""
    """Sessions: the text of the response that the next turn contains."""
    token: bytes = b""
    """Sessions: the latest value of `sessions.token_header`."""
    data: bytes = b""
    arrivals: list[int] = []
    counts: list[int] = []
    usage: Usage | None = None
    """The server's latest token counts."""
    first_attempt: tuple[int, int] | None = None
    """`sent` and `held` of the first attempt, if there is another one."""
    most: int = 1 << 30
    """Maximum bytes of the response."""
    check_at: int = _CHECK_EVERY
    """The number of bytes at which the size of the response is checked next (`excess`)."""


Ended = tuple[Flight, End | Fail, str | None]
"""A request that ended, how it ended, and the text of its response if its tokens have to be counted."""

COLUMNS = len(ROW.names or ())
assert tuple(name.removesuffix("_") for name in Flight.__struct_fields__[:COLUMNS]) == ROW.names  # class_ is `class`


def apply_events(flight: Flight, events: Sequence[Event], at: int) -> End | Fail | None:
    """Record the events of a response that arrived at `at`; return how the response ended, if it did."""
    for event in events:
        kind = event.__class__
        if kind is Tokens:
            flight.arrivals.append(at)
            flight.counts.append(event.n)  # type: ignore[union-attr]
            flight.first_content = flight.first_content or at
        elif kind is ServerTiming:
            flight.queue, flight.compute, flight.server_total = event.queue, event.compute, event.total  # type: ignore[union-attr]
        else:
            return event  # type: ignore[return-value]
    return None


def take(flight: Flight, received: Received) -> None:
    """Take over what a response has brought."""
    flight.arrivals, flight.counts = received.arrivals, received.counts
    flight.first_content, flight.usage = received.first_content, received.usage
    timing = received.timing
    if timing is not None:
        flight.queue, flight.compute, flight.server_total = timing.queue, timing.compute, timing.total


def excess(flight: Flight) -> Fail | None:
    """The failure of a response that is far longer than what was requested, or than it may be: one without an end would fill the memory."""
    flight.check_at = flight.bytes_in + _CHECK_EVERY
    wanted, most = flight.n_want, flight.most
    size = min(most, _BYTES + _BYTES_EACH * wanted) if wanted else most
    tokens = _TOKENS + _TOKENS_EACH * wanted if wanted else _MOST_TOKENS
    asked = f", although {wanted:,} tokens were requested" if wanted else ""
    if flight.bytes_in <= size and len(flight.arrivals) <= tokens:
        return None
    del flight.arrivals[1:], flight.counts[1:]  # nobody needs the times of so many chunks
    limit = format_bytes(size) if flight.bytes_in > size else f"{tokens:,} chunks"
    return Fail(TOO_LARGE, f"more than {limit}{asked}")


def keep_first_attempt(flight: Flight) -> None:
    """Note when a request was first sent, because it will be sent again: `sent` and `held` are now those of each attempt."""
    flight.first_attempt = flight.first_attempt or (flight.sent, flight.held)


def finish(flight: Flight, at: int) -> None:
    """Complete the row of a request that ended. A retry is part of its latency, so it counts from its first attempt."""
    flight.done = at
    if flight.first_attempt is not None:
        flight.sent, flight.held = flight.first_attempt
    if flight.usage is not None:
        _count_tokens(flight, flight.usage)


def _count_tokens(flight: Flight, usage: Usage) -> None:
    """Take over the server's own counts when the response has ended, and count the tokens of its chunks.

    A chunk counts as one token unless the server reports more. Those counts are known to be right if the server reports the
    tokens of every chunk, or if they add up to the tokens that were sent: all of them, without hidden reasoning, and without the
    token that ended the response.
    """
    if usage.n_in >= 0:
        flight.n_in, flight.in_counted_by = usage.n_in, _BY_SERVER
    flight.cached, flight.reasoning = usage.cached, usage.reasoning
    if usage.n_out < 0:
        return
    flight.n_out, flight.counted_by = usage.n_out, _BY_SERVER
    if flight.counts:
        streamed = sum(flight.counts)
        unsent = usage.n_out - streamed
        hidden = max(usage.reasoning, 0)
        if usage.is_per_chunk or unsent in (0, hidden) or (usage.is_stopped and unsent in (1, hidden + 1)):
            flight.first_tokens, flight.streamed_tokens = flight.counts[0], streamed
