"""What events of a response become in its row: first content, and the tokens of its chunks."""

import pytest

from inferometer.engine.inflight import Flight, finish, keep_first_attempt, take
from inferometer.records import COUNTED_BY
from inferometer.types import Received, Usage


def flight(*events: int | Usage) -> Flight:
    """A response whose events, usage or chunks with so many tokens, arrived at the instants 1, 2, 3 ..."""
    made, received = Flight(id=0, intended=0), Received()
    for at, event in enumerate(events, 1):
        if isinstance(event, Usage):
            received.usage = event
        else:
            received.arrivals.append(at)
            received.counts.append(event)
    take(made, received)
    finish(made, len(events) + 1)
    return made


def test_first_content_is_the_first_chunk_with_more_than_reasoning() -> None:
    received = Received()
    for at, is_content in enumerate((False, False, True, False), 1):
        received.token(at, "x", "x" if is_content else "", is_content)
    made = Flight(id=0, intended=0)
    take(made, received)
    assert made.first_content == 3


FIVE = (1,) * 5


@pytest.mark.parametrize(
    ("events", "first", "streamed"),
    [
        pytest.param([*FIVE, Usage(9, 5)], 1, 5, id="the chunks add up to all tokens"),
        pytest.param([*FIVE, Usage(9, 25, reasoning=20)], 1, 5, id="hidden reasoning was not streamed"),
        pytest.param([*FIVE, Usage(9, 5, reasoning=2)], 1, 5, id="reasoning was streamed"),
        pytest.param([*FIVE, Usage(9, 6, is_stopped=True)], 1, 5, id="the stop token was not streamed"),
        pytest.param([*FIVE, Usage(9, 26, reasoning=20, is_stopped=True)], 1, 5, id="neither was streamed"),
        pytest.param([3, 4, Usage(9, 9, is_per_chunk=True)], 3, 7, id="the server counted each chunk"),
        pytest.param([*FIVE, Usage(9, 6)], -1, -1, id="a chunk has more than one token"),
        pytest.param([*FIVE, Usage(9, 20)], -1, -1, id="chunks have several tokens"),
        pytest.param([*FIVE, Usage(9, -1)], -1, -1, id="the server does not count output tokens"),
        pytest.param([*FIVE], -1, -1, id="the server counts nothing"),
        pytest.param([Usage(9, 5)], -1, -1, id="not streamed"),
    ],
)
def test_tokens_of_chunks_are_known_only_if_they_add_up(events: list[int | Usage], first: int, streamed: int) -> None:
    made = flight(*events)
    assert (made.first_tokens, made.streamed_tokens) == (first, streamed)


def test_counts_are_those_of_the_latest_usage() -> None:
    made = flight(1, Usage(9, 1, cached=3), 1, Usage(9, 2, cached=4, reasoning=1))
    assert (made.n_in, made.n_out, made.cached, made.reasoning) == (9, 2, 4, 1)
    assert COUNTED_BY[made.counted_by] == "server"
    assert COUNTED_BY[flight(1, Usage(9, -1)).counted_by] == "nobody"


def test_a_retried_request_counts_from_its_first_attempt() -> None:
    made = Flight(id=0, intended=5, sent=10, held=2, attempts=1)
    for sent in (30, 50):
        keep_first_attempt(made)
        made.sent, made.held, made.attempts = sent, made.held + 7, made.attempts + 1
    finish(made, 60)
    assert (made.intended, made.sent, made.held, made.attempts, made.done) == (5, 10, 2, 3, 60)
