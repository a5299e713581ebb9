"""What events of a response become in its row: first content, and the tokens of its chunks."""

import pytest

from inferometer.engine.inflight import Flight, apply_events, finish, keep_first_attempt
from inferometer.records import COUNTED_BY
from inferometer.types import ONE_REASONING_TOKEN, ONE_TOKEN, Event, Tokens, Usage


def flight(*events: Event) -> Flight:
    """A response whose events arrived at the instants 1, 2, 3 ..."""
    made = Flight(id=0, intended=0)
    for at, event in enumerate(events, 1):
        assert apply_events(made, [event], at) is None
    finish(made, len(events) + 1)
    return made


def test_first_content_is_the_first_chunk_with_more_than_reasoning() -> None:
    assert flight(ONE_TOKEN, ONE_TOKEN).first_content == 1
    assert flight(ONE_REASONING_TOKEN, ONE_REASONING_TOKEN, ONE_TOKEN, ONE_REASONING_TOKEN).first_content == 3
    assert flight(ONE_REASONING_TOKEN).first_content == 0


FIVE = (ONE_TOKEN,) * 5


@pytest.mark.parametrize(
    ("events", "first", "streamed"),
    [
        pytest.param([*FIVE, Usage(9, 5)], 1, 5, id="the chunks add up to all tokens"),
        pytest.param([*FIVE, Usage(9, 25, reasoning=20)], 1, 5, id="hidden reasoning was not streamed"),
        pytest.param([*FIVE, Usage(9, 5, reasoning=2)], 1, 5, id="reasoning was streamed"),
        pytest.param([*FIVE, Usage(9, 6, is_stopped=True)], 1, 5, id="the stop token was not streamed"),
        pytest.param([*FIVE, Usage(9, 26, reasoning=20, is_stopped=True)], 1, 5, id="neither was streamed"),
        pytest.param([Tokens(3), Tokens(4), Usage(9, 9, is_per_chunk=True)], 3, 7, id="the server counted each chunk"),
        pytest.param([*FIVE, Usage(9, 6)], -1, -1, id="a chunk has more than one token"),
        pytest.param([*FIVE, Usage(9, 20)], -1, -1, id="chunks have several tokens"),
        pytest.param([*FIVE, Usage(9, -1)], -1, -1, id="the server does not count output tokens"),
        pytest.param([*FIVE], -1, -1, id="the server counts nothing"),
        pytest.param([Usage(9, 5)], -1, -1, id="not streamed"),
    ],
)
def test_tokens_of_chunks_are_known_only_if_they_add_up(events: list[Event], first: int, streamed: int) -> None:
    made = flight(*events)
    assert (made.first_tokens, made.streamed_tokens) == (first, streamed)


def test_counts_are_those_of_the_latest_usage() -> None:
    made = flight(ONE_TOKEN, Usage(9, 1, cached=3), ONE_TOKEN, Usage(9, 2, cached=4, reasoning=1))
    assert (made.n_in, made.n_out, made.cached, made.reasoning) == (9, 2, 4, 1)
    assert COUNTED_BY[made.counted_by] == "server"
    assert COUNTED_BY[flight(ONE_TOKEN, Usage(9, -1)).counted_by] == "nobody"


def test_a_retried_request_counts_from_its_first_attempt() -> None:
    made = Flight(id=0, intended=5, sent=10, held=2, attempts=1)
    for sent in (30, 50):
        keep_first_attempt(made)
        made.sent, made.held, made.attempts = sent, made.held + 7, made.attempts + 1
    finish(made, 60)
    assert (made.intended, made.sent, made.held, made.attempts, made.done) == (5, 10, 2, 3, 60)
