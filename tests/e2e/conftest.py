"""One simulator for the tests of the whole path, in a child process, with short times and faults on request."""

from collections.abc import Iterator

import pytest

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed


@pytest.fixture(scope="session")
def sim() -> Iterator[str]:
    """The URL."""
    with running(simulator(timing=Fixed(ttft=0.01, itl=0.001), allow_fault_header=True)) as url:
        yield url
