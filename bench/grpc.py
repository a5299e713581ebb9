"""gRPC unary calls, compared with grpcio (threads and asyncio), in turn on the same null server.

`calls per CPU second` counts the CPU time of all processes of `inferometer run`, from its start to the printed report, minus
that of a run with one request per user. For grpcio it counts the client's process while it makes calls; it has no records,
metrics or report to produce. The bare loop (bare_grpc.py) is the floor of a client in Python with the kernel's stamps.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.common import CLIENT_CORE, HERE, Line, Measured, compiled_server, measure, median, percentile, pinned, show
from inferometer.wire import protobuf

METHOD = "inference.GRPCInferenceService/ModelInfer"
MESSAGE = b"\x0a\x01m\x3a\xc8\x01" + bytes(200)
"""A ModelInferRequest, as grpcio_client.py sends it."""

ROUNDS = 3
SECONDS = 5
CONCURRENCY = 64
PEERS = ("threads", "asyncio")


def main() -> int:
    lines: list[Line] = []
    facts: dict[str, object] = {}
    with (
        tempfile.TemporaryDirectory(prefix="inferometer-") as folder,
        compiled_server("null_grpc_server.c", 0, 64) as port,
    ):
        for connections in (1, CONCURRENCY):
            lines += _load(folder, port, connections, facts)
        lines += _latency(folder, port, facts)
    return show("grpc", lines, **facts)


def _load(folder: str, port: int, connections: int, facts: dict[str, object]) -> list[Line]:
    """Calls per CPU second with 64 calls in flight, over the same number of connections for all clients."""
    per_cpu: dict[str, list[float]] = {name: [] for name in (*PEERS, "bare loop", "inferometer")}
    for _ in range(ROUNDS):
        for kind in PEERS:
            found = _grpcio(kind, port, CONCURRENCY, connections)
            per_cpu[kind].append(found["calls"] / found["cpu"])
        bare = _peer("-m", "bench.bare_grpc", f"127.0.0.1:{port}", CONCURRENCY, connections, SECONDS)
        per_cpu["bare loop"].append(bare["calls"] / bare["cpu"])
        per_cpu["inferometer"].append(_calls_per_cpu(folder, port, connections))
    facts[f"per_cpu_{connections}"] = per_cpu
    ratio = median(per_cpu["inferometer"]) / max(median(per_cpu[kind]) for kind in PEERS)
    over = f"{CONCURRENCY} in flight, {connections} connection{'s' * (connections > 1)}"
    return [
        *(Line(f"{name}, {over}", f"{median(found):,.0f} calls per CPU second") for name, found in per_cpu.items()),
        Line("inferometer / the better grpcio client", f"{ratio:.1f}", ">= 5", ratio >= 5),
        Line("inferometer / bare loop", f"{median(per_cpu['inferometer']) / median(per_cpu['bare loop']):.2f}"),
    ]


def _latency(folder: str, port: int, facts: dict[str, object]) -> list[Line]:
    """The latency that a client adds to a response that takes almost no time."""
    latency: dict[str, list[float]] = {name: [] for name in (*PEERS, "inferometer")}
    for _ in range(ROUNDS):
        for kind in PEERS:
            latency[kind].append(_grpcio(kind, port, 1, 1)["p50"])
        alone = _inferometer(folder, port, 1, "--concurrency", "1", "--duration", f"{SECONDS}s")
        latency["inferometer"].append(percentile(alone.summary["metrics"]["e2e_service"], "p50"))
    facts["latency"] = latency
    ratio = median(latency["inferometer"]) / min(median(latency[kind]) for kind in PEERS)
    return [
        *(Line(f"{name}, 1 in flight", f"{median(found) * 1e6:.0f} us p50") for name, found in latency.items()),
        Line("inferometer / the faster grpcio client", f"{ratio:.2f}", "<= 0.33", ratio <= 1 / 3),
    ]


def _grpcio(kind: str, port: int, concurrency: int, connections: int) -> dict[str, float]:
    # -P: this folder's grpc.py is not grpcio
    return _peer("-P", HERE / "grpcio_client.py", kind, f"127.0.0.1:{port}", concurrency, connections, SECONDS)


def _peer(*arguments: object) -> dict[str, float]:
    """Run a client in Python on its core; return what it prints."""
    command = pinned(CLIENT_CORE, sys.executable, *arguments)
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _inferometer(folder: str, port: int, connections: int, *options: str) -> Measured:
    message = Path(folder) / "message.bin"
    message.write_bytes(MESSAGE)
    found = measure(
        folder,
        f"grpc://127.0.0.1:{port}",
        *options,
        server__api="grpc",
        server__method=METHOD,
        server__proto=str(protobuf.BUNDLED / "kserve.binpb"),
        data__path=str(message),
        client__connections=connections,
    )
    assert found.summary["counts"]["failed"] == 0, found.summary["counts"]
    return found


def _calls_per_cpu(folder: str, port: int, connections: int) -> float:
    options = ("--concurrency", str(CONCURRENCY))
    startup = _inferometer(folder, port, connections, *options, "--requests", str(CONCURRENCY))
    found = _inferometer(folder, port, connections, *options, "--duration", f"{SECONDS}s")
    return (len(found.run.records.rows) - CONCURRENCY) / (found.cpu - startup.cpu)


if __name__ == "__main__":
    sys.exit(main())
