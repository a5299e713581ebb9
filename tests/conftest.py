"""Shared by all tests: hypothesis settings, tests that need more than `make setup` installs, and runs that start quickly."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from needs import BACKENDS, PROGRAMS, REAL, missing

from inferometer import conduct
from inferometer.config import Config
from inferometer.engine import http1, http2_connection
from inferometer.fleet import supervisor
from inferometer.units import NS

# No deadlines, because machines are shared; and fewer examples than the default of 100, because the suite runs often.
settings.register_profile("shared-machine", deadline=None, max_examples=50)
settings.load_profile("shared-machine")

# Without this, grpcio, the client in many tests, logs the end of one test's connections some time later, on the standard error
# of another test that expects it to be empty.
os.environ["GRPC_VERBOSITY"] = "NONE"

# In the background or under nohup, pytest ignores these signals, and so would the commands that tests send them to.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before the tests are selected by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose needs are missing, and mark all that have one as `extra`."""
    reasons = {need: missing(need) for need in (*BACKENDS, *REAL, *PROGRAMS)}
    for item in items:
        for need in reasons.keys() & {mark.name for mark in item.iter_markers()}:
            item.add_marker("extra")
            if reason := reasons[need]:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def runs_start_soon() -> Iterator[None]:
    """Start runs after 20 ms. Users' runs wait 100 ms until all processes are ready; tests start hundreds of small runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "_START_IN", NS // 50)
        yield


_OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture(autouse=True)
def open_files_stay_few() -> Iterator[None]:
    """Collect garbage when it holds many open files: runs in this process leave maps of files in reference cycles, and commands and
    servers call gc.freeze(). Some tests, and select(), take only descriptors below 1,024."""
    yield
    if _OPEN_FILES.is_dir() and sum(1 for _ in _OPEN_FILES.iterdir()) > 300:
        gc.unfreeze()
        gc.collect()


@pytest.fixture
def stale_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resend requests on stale connections, however late the close is noticed. For users the limit is half a second, and a busy
    machine may exceed it."""
    for module in (http1, http2_connection):
        monkeypatch.setattr(module, "STALE_WITHIN", 1 << 62)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs as with `client.processes: 0`, for commands that have no flag for it."""
    measure = conduct.measure

    def measured(config: Config, *more: Any, **named: Any) -> Any:
        client = msgspec.structs.replace(config.client, processes=0)
        return measure(msgspec.structs.replace(config, client=client), *more, **named)

    monkeypatch.setattr(conduct, "measure", measured)
