"""The traceparent header: its form, and that it agrees between HTTP/1.1, HTTP/2 and the ids of spans."""

import re

import hpack
from hypothesis import given
from hypothesis import strategies as st

from inferometer.wire import traceparent
from inferometer.wire.http2.hpack import encode

IDS = st.integers(0, (1 << 50) - 1)
_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")


def http1_value(tag: str, id: int) -> str:
    before, name, value = traceparent.http1_header(tag)(id).decode().partition("\r\ntraceparent: ")
    assert before == "" and name
    return value


@given(st.text(max_size=12), IDS)
def test_the_header_has_the_ids_of_the_request(tag: str, id: int) -> None:
    form = _FORM.fullmatch(http1_value(tag, id))
    assert form is not None
    ids = traceparent.trace_ids(tag)
    assert bytes.fromhex(form[1]) == ids.run + ids.of(id).to_bytes(8, "big")
    assert bytes.fromhex(form[2]) == ids.of(id).to_bytes(8, "big")


@given(st.text(max_size=12), IDS)
def test_http2_sends_the_same_header_after_other_headers(tag: str, id: int) -> None:
    block = encode([(b":method", b"POST"), (b"x", b"y")]) + traceparent.http2_header(tag)(id)
    fields = hpack.Decoder().decode(block)
    assert fields == [(":method", "POST"), ("x", "y"), ("traceparent", http1_value(tag, id))]


@given(st.sets(IDS, min_size=2, max_size=50))
def test_no_two_requests_share_a_trace(ids: set[int]) -> None:
    assert len({http1_value("tag", id) for id in ids}) == len(ids)


def test_runs_have_different_traces() -> None:
    assert http1_value("a", 0) != http1_value("b", 0)


def test_a_sampler_that_goes_by_trace_id_keeps_its_share_of_the_requests() -> None:
    """Consistent probability sampling compares the last 7 bytes of the trace id with a threshold."""
    ids = traceparent.trace_ids("tag")
    kept = sum((ids.of(id) & ((1 << 56) - 1)) >= (1 << 56) * 9 // 10 for id in range(10_000))
    assert 900 <= kept <= 1_100
