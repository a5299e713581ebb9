"""As many clients as there can be: served, or refused in words; the server goes on, and its memory and files come back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_grpc import RawGrpc
from robust_peer import (
    MIB,
    MODEL_INFER,
    PATIENCE_S,
    PORTS,
    Child,
    a_request,
    answers,
    child,
    delayed,
    dialled,
    many_connections,
    many_streams,
    small,
    write_models,
)
from waiting import until

COUNT = 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    models = write_models(tmp_path_factory.mktemp("models"), late=delayed("50ms", slots=0))
    with child("identity", models, *PORTS) as one:
        answers(one)
        yield one


@pytest.mark.slow
def test_a_thousand_streams_at_the_same_time(server: Child) -> None:
    many_streams(server.place, COUNT, "late")
    files, memory = server.files(), server.memory()  # gRPC opens a few of its own when it is first busy
    tally = many_streams(server.place, COUNT, "late")
    assert (tally.served, tally.lost) == (COUNT, {})
    until(lambda: server.files() <= files, "as many files are open as before")
    until(lambda: server.memory() - memory <= 32 * MIB, "the memory is given back")
    assert answers(server)
    assert server.errors() == ""


def test_a_thousand_connections_at_the_same_time(server: Child) -> None:
    many_connections(server.address, 10, small("late"))
    files = server.files()  # including a timer, which the server opens when it is first busy
    many_connections(server.address, COUNT, small("late"))
    memory = server.memory()
    tally = many_connections(server.address, COUNT, small("late"))
    assert (tally.served, tally.lost) == (2 * COUNT, {})
    until(lambda: server.files() <= files, "as many files are open as before")
    until(lambda: server.memory() - memory <= 32 * MIB, "the memory is given back")
    assert answers(server)
    assert server.errors() == ""


@pytest.mark.slow
def test_requests_over_the_limit_are_refused_in_words(tmp_path: Path) -> None:
    models = write_models(tmp_path, late=delayed("1s", slots=0))
    with child("identity", models, *PORTS, "--max-requests=50") as server:
        tally = many_connections(server.address, 200, small("late"))
        assert tally.lost == {}
        assert set(tally.refused) == {"429"}
        assert tally.served + tally.refused["429"] == 400
        assert 100 <= tally.served < 400
        assert answers(server)


def test_calls_over_the_limit_of_a_connection_wait_their_turn(tmp_path: Path) -> None:
    """That is HTTP/2's own limit: the client keeps what the connection does not take."""
    models = write_models(tmp_path, late=delayed("50ms", slots=0))
    with child("identity", models, *PORTS, "--max-streams=10") as server:
        with RawGrpc(server.place) as raw:
            assert raw.max_streams == 10
        with dialled(server.place) as channel:
            message = a_request("late").SerializeToString()
            calls = [channel.unary_unary(MODEL_INFER).future(message, timeout=PATIENCE_S) for _ in range(40)]
            assert all(call.result() for call in calls)
        assert answers(server)
