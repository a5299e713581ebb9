"""Which encoded request is sent for an id."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.engine.requests import NO_USER, Requests
from inferometer.types import Calls
from inferometer.wire.http1 import ID

NO_DECODER: Any = lambda: None  # noqa: E731


def requests(*ids: range, period: int = 0, count: int = 0) -> Requests:
    number = count or sum(map(len, ids))
    return Requests(
        Calls(
            heads=(b"id ",),
            tails=tuple(b" body %d" % n for n in range(number)),
            n_in=tuple(range(number)),
            n_out=tuple(range(100, 100 + number)),
            decoder=NO_DECODER,
            ids=ids,
            period=period,
        ),
        0,
        1,
    )


def sent(made: Requests, *ids: int) -> list[int]:
    """The indexes of the encoded requests that are sent for these ids."""
    flights = [made.make(0, [id], [(NO_USER, 0)])[0] for id in ids]
    for id, flight in zip(ids, flights, strict=True):
        assert flight.data == b"id %b body %d" % (ID % id, flight.n_in)
        assert flight.n_want == flight.n_in + 100
    return [flight.n_in for flight in flights]


@given(st.data())
def test_each_id_has_its_own_request_in_any_order(data: st.DataObject) -> None:
    first, step = data.draw(st.integers(0, 50)), data.draw(st.integers(1, 5))
    own = range(first, first + 12 * step, step)
    dealt = range(first + 100, first + 120)
    ids = data.draw(st.permutations([*own, *dealt]))
    places = {id: n for n, id in enumerate([*own, *dealt])}
    assert sent(requests(own, dealt), *ids) == [places[id] for id in ids]


def test_ids_beyond_the_last_use_the_requests_of_their_stage_again() -> None:
    made = requests(range(0, 3), range(1000, 1008, 2))
    assert sent(made, 0, 1, 2, 3, 4, 5, 6) == [0, 1, 2, 0, 1, 2, 0]
    assert sent(made, 1000, 1006, 1008, 1010, 1016) == [3, 6, 3, 4, 3]
    assert sent(made, 1) == [1]


@pytest.mark.parametrize("ids", [range(20), range(3, 20, 5)])
def test_requests_repeat_with_the_period(ids: range) -> None:
    assert sent(requests(range(7), period=7), *ids) == [id % 7 for id in ids]


def test_without_ids_requests_are_used_in_turn() -> None:
    assert sent(requests(count=3), 50, 7, 1, 0) == [0, 1, 2, 0]


def test_only_requests_of_sessions_have_the_session_header() -> None:
    calls = Calls(
        heads=(b"id ",),
        class_heads=((b"a ",), (b"b ",)),
        tails=(b" x", b" y"),
        n_in=(1, 1),
        n_out=(1, 1),
        classes=(0, 1),
        decoder=NO_DECODER,
        session=lambda index: iter(()),  # type: ignore[arg-type,return-value]
        session_classes=frozenset({1}),
        session_header=b"\r\nX-Session-ID: t-",
    )
    made = Requests(calls, 0, 1).make(0, [0, 1], [(NO_USER, 0)] * 2)
    assert [flight.data for flight in made] == [b"a %b x" % (ID % 0), b"b %b\r\nX-Session-ID: t-1 y" % (ID % 1)]
    assert [flight.session for flight in made] == [-1, 1]
