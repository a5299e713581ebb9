"""The durations of Server-Timing headers."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from inferometer.types import End, Fail, Received, ServerTiming
from inferometer.wire.http1 import TimedResponseDecoder
from inferometer.wire.server_timing import parse


@pytest.mark.parametrize(
    ("value", "queue", "compute"),
    [
        (b"queue;dur=0.12, compute;dur=3.4", 120_000, 3_400_000),
        (b"compute;dur=3.4,queue;dur=0.12", 120_000, 3_400_000),
        (b"queue;dur=0", 0, -1),
        (b"compute;dur=1e3", -1, 1_000_000_000),
        (b'Queue ; desc="waiting" ; DUR="2"', 2_000_000, -1),
        (b"cache;desc=hit, compute;dur=1;desc=x", -1, 1_000_000),
        (b"queue;dur=soon, compute;dur=1", -1, 1_000_000),
        (b"queue;dur=-1, compute;dur=1", -1, 1_000_000),
        (b"queue;dur=nan, compute;dur=inf, compute;dur=4", -1, 4_000_000),
    ],
)
def test_queue_and_compute_in_milliseconds(value: bytes, queue: int, compute: int) -> None:
    assert parse(value) == ServerTiming(queue, compute)


@pytest.mark.parametrize(
    ("value", "total"),
    [
        (b"queue;dur=0.12, compute;dur=3.4, total;dur=3.71", 3_710_000),
        (b",queue;dur=0.12, compute;dur=3.4, total;dur=3.71", 3_710_000),
        (b"total;dur=3.71,compute;dur=3.4,queue;dur=0.12", 3_710_000),
        (b"queue;dur=0.12, compute;dur=3.4, total;dur=x", -1),
        (b"queue;dur=0.12, compute;dur=3.4, total;dur=1.2.3", -1),
    ],
)
def test_total_in_milliseconds(value: bytes, total: int) -> None:
    assert parse(value) == ServerTiming(120_000, 3_400_000, total)
    assert parse(b"total;dur=4") == ServerTiming(-1, -1, 4_000_000)


@pytest.mark.parametrize(
    "value", [b"", b"cache;dur=4", b"queue", b"queue;dur", b"queue;dur=x", b",;,;=", b"queue;dur=1e30"]
)
def test_header_without_known_durations_is_ignored(value: bytes) -> None:
    assert parse(value) is None


@given(st.binary(max_size=60) | st.text("queuecomptal;=dr,. 0123456789", max_size=60).map(str.encode))
def test_any_header_value_is_accepted(value: bytes) -> None:
    timing = parse(value)
    assert timing is None or (min(durations := astuple(timing)) >= -1 and max(durations) >= 0)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_any_two_durations(queue: float, compute: float) -> None:
    assert parse(f"queue;dur={queue!r}, compute;dur={compute!r}".encode()) == ServerTiming(
        round(queue * 1e6), round(compute * 1e6)
    )


class IgnoredBody:
    """A body decoder that ignores the body."""

    is_stream = False

    def reset(self) -> None: ...

    def feed(self, pieces: Sequence[bytes], stamps: Sequence[int], into: Received) -> Fail | None:
        return None

    def finish(self, into: Received) -> Fail | None:
        return None


def test_several_header_lines_form_one_list() -> None:
    head = b"HTTP/1.1 200 OK\r\nServer-Timing: queue;dur=1\r\nserver-timing: compute;dur=2\r\nContent-Length: 0\r\n\r\n"
    decoder = TimedResponseDecoder(IgnoredBody())
    assert decoder.feed([head], [1]) == End(True)
    assert decoder.received.timing == ServerTiming(1_000_000, 2_000_000)


def test_timing_of_early_hints_is_not_attributed_to_the_response() -> None:
    decoder = TimedResponseDecoder(IgnoredBody())
    assert decoder.feed([b"HTTP/1.1 103 Early Hints\r\nServer-Timing: queue;dur=1\r\n\r\n"], [1]) is None
    assert decoder.feed([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], [2]) == End(True)
    assert decoder.received.timing is None
