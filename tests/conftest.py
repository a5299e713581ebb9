"""What all tests share: hypothesis without deadlines (machines are shared), and runs that do not wait longer than they must."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from needs import BACKENDS, REAL, missing

from inferometer import conduct
from inferometer.config import Config
from inferometer.engine import http1_connection, http2_connection
from inferometer.fleet import supervisor
from inferometer.units import NS

settings.register_profile("shared-machine", deadline=None, max_examples=50)
settings.load_profile("shared-machine")

# As the server sets it for users (serve/app.py). Otherwise gRPC's core tells of the end of one test's connections
# whenever it gets to it, on the standard error of another test that says nothing is to be printed there.
os.environ["GRPC_VERBOSITY"] = "NONE"

# Run in the background or under nohup, we ignore these, and so would the commands that tests send them to.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before the tests are selected by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose needs are missing, and mark all that have one as `extra`."""
    reasons = {need: missing(need) for need in (*BACKENDS, *REAL)}
    for item in items:
        for need in reasons.keys() & {mark.name for mark in item.iter_markers()}:
            item.add_marker("extra")
            if reason := reasons[need]:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def runs_start_soon() -> Iterator[None]:
    """Users' runs wait 100 ms for all processes to have heard of the start. Tests make hundreds, of one process and few requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "_START_IN", NS // 50)
        yield


@pytest.fixture
def stale_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' requests are sent again where the news that the connection was closed comes within half a second. A machine that
    stands still for as long would make failures of them."""
    for module in (http1_connection, http2_connection):
        monkeypatch.setattr(module, "STALE_WITHIN", 1 << 62)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands that have no flag for it: their runs are made as with `client.processes: 0`."""
    measure = conduct.measure

    def measured(config: Config, *more: Any) -> Any:
        client = msgspec.structs.replace(config.client, processes=0)
        return measure(msgspec.structs.replace(config, client=client), *more)

    monkeypatch.setattr(conduct, "measure", measured)
