"""Two servers that tests without special settings share: a simulator in a child process, with short times and the fault
header, and one with models and a simulator in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from raw_client import RawClient
from served import Served, serving

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed, Sim


@pytest.fixture(scope="session")
def sim() -> Iterator[str]:
    """The simulator's URL."""
    with running(simulator(timing=Fixed(ttft=0.01, itl=0.001), allow_fault_header=True)) as url:
        yield url


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving(sim=Sim(timing=Fixed(ttft=0.001, itl=0))) as one:
        yield one


@pytest.fixture
def client(sim: str) -> Iterator[RawClient]:
    with RawClient(sim) as client:
        yield client


@pytest.fixture
def truth_file(tmp_path: Path) -> str:
    return str(tmp_path / "truth.jsonl")


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """PEM files by name: cert and key of the server, ca of the authority; other (another key), nonsense and missing."""
    folder = tmp_path_factory.mktemp("tls")
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    server.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(folder / "other.pem")
    (folder / "nonsense.pem").write_text("nonsense\n")
    names = ("cert", "key", "ca", "other", "nonsense", "missing")
    return {name: str(folder / f"{name}.pem") for name in names}
