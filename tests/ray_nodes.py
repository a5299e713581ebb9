"""Ray clusters of several nodes on this machine, on loopback, that end with the test."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
ADDRESSES = [f"127.0.{_WORKER}.{last}" for last in range(2, 10)]
"""Of the nodes, in tests of this process. Ray cannot be at 127.0.0.1: it takes that for the address of an interface."""
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
STORE = 100 << 20


@contextlib.contextmanager
def ray_cluster(nodes: int) -> Iterator[Any]:
    """A cluster whose nodes have one CPU each. This process is connected to it."""
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # sockets have short names
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (ENVIRONMENT | {"RAY_TMPDIR": folder}).items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        options = {"num_cpus": 1, "object_store_memory": STORE}
        head = options | {"include_dashboard": False, "node_ip_address": ADDRESSES[0]}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for address in ADDRESSES[1:nodes]:
                cluster.add_node(**options, node_ip_address=address)
            ray.init(cluster.address, _node_ip_address=ADDRESSES[0], logging_level="error", log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def may_shift_clocks() -> bool:
    """Whether this process may start others in a time namespace, whose monotonic clock is another one."""
    command = ["unshare", "--time", "--monotonic", "1", "--fork", "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
    )


@contextlib.contextmanager
def shifted_node(cluster: Any, address: str, seconds: int) -> Iterator[None]:
    """Another node, whose monotonic clock is this many seconds ahead."""
    import ray  # noqa: PLC0415

    def is_there() -> bool:
        return any(node["Alive"] and node["NodeManagerAddress"] == address for node in ray.nodes())

    start = [
        Path(sys.executable).with_name("ray"),
        "start",
        f"--address={cluster.address}",
        f"--node-ip-address={address}",
    ]
    more = ["--num-cpus=1", f"--object-store-memory={STORE}", "--disable-usage-stats", "--block"]
    process = subprocess.Popen(
        ["unshare", "--time", "--monotonic", str(seconds), "--fork", "--kill-child", *map(str, start), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(is_there, "the node whose clock is ahead", seconds=120)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
