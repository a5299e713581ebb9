"""What a Server-Timing header says of queue and compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.types import ServerTiming
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
