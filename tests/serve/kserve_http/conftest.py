"""A connection to the shared server."""

from collections.abc import Iterator

import pytest
from raw_client import RawClient
from served import Served


@pytest.fixture
def web(server: Served) -> Iterator[RawClient]:
    with RawClient(server.url) as client:
        yield client
