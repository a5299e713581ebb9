"""A server with all models, shared by tests that do not change it."""

from collections.abc import Iterator

import pytest
from raw_client import RawClient
from served import Served, make_repository, serving

from inferometer.serve.settings import Limits, Settings
from inferometer.serve.sim.settings import Fixed, Sim


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = Settings(sim=Sim(timing=Fixed(ttft=0.001, itl=0)), limits=Limits(message=100_000_000))
    with serving(settings, make_repository(tmp_path_factory.mktemp("models"))) as made:
        yield made


@pytest.fixture
def web(server: Served) -> Iterator[RawClient]:
    with RawClient(server.url) as client:
        yield client
