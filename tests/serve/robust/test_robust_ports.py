"""Port conflicts are reported with the port, whoever uses the port and since when."""

import socket
import subprocess
from pathlib import Path

import pytest
from robust_peer import launched, write_models
from served import PATIENCE_S, PYTHON

from inferometer.errors import UserError
from inferometer.serve.settings import Settings, check

LOADS_SLOWLY = """
import time
from pathlib import Path

print("loading", flush=True)
while not Path({until!r}).exists():
    time.sleep(0.005)


def infer(inputs, parameters):
    return {{"OUTPUT0": inputs["INPUT0"]}}
"""


@pytest.mark.parametrize("ports", [{"grpc": 8000}, {"metrics": 8000}, {"grpc": 8002, "metrics": 8002}])
def test_equal_ports_are_refused(ports: dict[str, int]) -> None:
    with pytest.raises(UserError, match="--http, --grpc and --metrics must be different ports"):
        check(Settings(http=8000, **ports))


def test_any_free_port_and_no_port_may_be_given_repeatedly() -> None:
    check(Settings(http=0, grpc=0, metrics=0))
    check(Settings(http=8000, grpc=None, metrics=None))


def test_a_port_that_another_process_takes_while_models_are_loading(tmp_path: Path) -> None:
    """A bound port is not reserved: of two processes that bind it, the first to listen gets it."""
    go_on = tmp_path / "go on"
    models = write_models(tmp_path / "models", slow=PYTHON)
    (tmp_path / "models/slow/1/model.py").write_text(LOADS_SLOWLY.format(until=str(go_on)))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        ports = {"--http": 0, "--grpc": 0, "--metrics": port}
        arguments = [f"{name}={number}" for name, number in ports.items()]
        process = launched("identity", models, *arguments, stderr=subprocess.PIPE)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "loading\n"
            other.listen()
            go_on.touch()
            _, stderr = process.communicate(timeout=PATIENCE_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert process.returncode == 2
    assert stderr.splitlines()[0] == f"inferometer: 127.0.0.1 port {port} is in use"
    assert "choose another port with --http, --grpc or --metrics" in stderr
