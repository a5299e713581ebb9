"""The gRPC server that most tests of this folder share, and a client of it."""

from collections.abc import Iterator

import pytest
from grpc_peer import Served, Stub, dialled, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def stub(served: Served) -> Iterator[Stub]:
    with dialled(served.grpc_address) as client:
        yield client
