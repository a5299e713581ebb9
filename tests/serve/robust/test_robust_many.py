"""Many concurrent clients are served or refused with an error; the server continues, and frees memory and files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from robust_peer import MIB, PORTS, Child, child, many_connections, many_streams, responds, small, write_models
from served import delayed
from waiting import until

COUNT, STREAMS = 250, 10_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    models = write_models(tmp_path_factory.mktemp("models"), late=delayed("50ms", slots=0))
    with child("identity", models, *PORTS) as one:
        responds(one)
        yield one


@pytest.mark.slow
def test_ten_thousand_concurrent_streams_on_one_connection(server: Child) -> None:
    many_streams(server.grpc_address, STREAMS, "late")
    files, memory = server.files(), server.memory()
    tally = many_streams(server.grpc_address, STREAMS, "late")
    assert (tally.served, tally.refused, tally.lost) == (STREAMS, {}, {})
    until(lambda: server.files() <= files, "no more files are open than before")
    until(lambda: server.memory() - memory <= 32 * MIB, "the memory is freed")
    assert responds(server)
    assert server.errors() == ""


def test_many_concurrent_connections(server: Child) -> None:
    many_connections(server.address, 10, small("late"))
    files = server.files()  # including a timer, which the server opens when it is first busy
    many_connections(server.address, COUNT, small("late"))
    memory = server.memory()
    tally = many_connections(server.address, COUNT, small("late"))
    assert (tally.served, tally.lost) == (2 * COUNT, {})
    until(lambda: server.files() <= files, "no more files are open than before")
    until(lambda: server.memory() - memory <= 32 * MIB, "the memory is freed")
    assert responds(server)
    assert server.errors() == ""


@pytest.mark.slow
def test_requests_over_the_limit_are_refused_with_an_error(tmp_path: Path) -> None:
    models = write_models(tmp_path, late=delayed("500ms", slots=0))
    with child("identity", models, *PORTS, "--max-requests=25") as server:
        tally = many_connections(server.address, 100, small("late"))
        assert tally.lost == {}
        assert set(tally.refused) == {"429"}
        assert tally.served + tally.refused["429"] == 200  # two on each connection
        assert 25 <= tally.served < 200
        assert responds(server)
