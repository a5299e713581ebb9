"""A client of the shared server."""

from collections.abc import Iterator

import pytest
from served import Served, Stub, dialled


@pytest.fixture(scope="module")
def stub(server: Served) -> Iterator[Stub]:
    with dialled(server.grpc_address) as client:
        yield client
