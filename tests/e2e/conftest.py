"""One simulator for the end-to-end tests, in a child process, with short times and faults on request."""

from collections.abc import Iterator

import pytest

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed


@pytest.fixture(scope="session")
def sim() -> Iterator[str]:
    """Return the simulator's URL."""
    with running(simulator(timing=Fixed(ttft=0.01, itl=0.001), allow_fault_header=True)) as url:
        yield url
