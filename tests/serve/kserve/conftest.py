"""Clients of the shared server."""

from collections.abc import Iterator

import pytest
from raw_client import RawClient
from served import Served, Stub, dialled


@pytest.fixture
def web(server: Served) -> Iterator[RawClient]:
    with RawClient(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def stub(server: Served) -> Iterator[Stub]:
    with dialled(server.grpc_address) as client:
        yield client
