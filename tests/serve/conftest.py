"""A simulator in a child process, with short times and the fault header, shared by tests without special settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_client import RawClient

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed


@pytest.fixture(scope="session")
def sim() -> Iterator[str]:
    """The simulator's URL."""
    with running(simulator(timing=Fixed(ttft=0.01, itl=0.001), allow_fault_header=True)) as url:
        yield url


@pytest.fixture
def client(sim: str) -> Iterator[RawClient]:
    with RawClient(sim) as client:
        yield client


@pytest.fixture
def truth_file(tmp_path: Path) -> str:
    return str(tmp_path / "truth.jsonl")
