"""What a Server-Timing header says of queue and compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.types import End, Event, Fail, ServerTiming
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
    "value", [b"", b"total;dur=4", b"queue", b"queue;dur", b"queue;dur=x", b",;,;=", b"queue;dur=1e30"]
)
def test_one_that_says_neither(value: bytes) -> None:
    assert parse(value) is None


@given(st.binary(max_size=60) | st.text("queuecompte;=dr,. 0123456789", max_size=60).map(str.encode))
def test_no_header_is_too_odd(value: bytes) -> None:
    found = parse(value)
    assert found is None or (found.queue >= -1 and found.compute >= -1 and max(found.queue, found.compute) >= 0)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_any_two_times(queue: float, compute: float) -> None:
    assert parse(f"queue;dur={queue!r}, compute;dur={compute!r}".encode()) == ServerTiming(
        round(queue * 1e6), round(compute * 1e6)
    )


class Nothing:
    """A body of no interest."""

    text = ""

    def reset(self) -> None: ...

    def feed(self, piece: bytes, events: list[Event]) -> None: ...

    def finish(self, events: list[Event]) -> Fail | None:
        return None


def test_several_header_lines_are_one_list() -> None:
    head = b"HTTP/1.1 200 OK\r\nServer-Timing: queue;dur=1\r\nserver-timing: compute;dur=2\r\nContent-Length: 0\r\n\r\n"
    assert TimedResponseDecoder(Nothing()).feed(head) == [ServerTiming(1_000_000, 2_000_000), End(True)]


def test_what_early_hints_say_is_not_said_again_by_the_answer() -> None:
    decoder = TimedResponseDecoder(Nothing())
    decoder.feed(b"HTTP/1.1 103 Early Hints\r\nServer-Timing: queue;dur=1\r\n\r\n")
    assert decoder.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") == [End(True)]
