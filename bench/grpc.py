"""gRPC unary calls: beside grpcio (threads and asyncio) on the same null server, in turn.

`calls a CPU second` counts all processes of `inferometer run`, from its start to the printed report, less what a run of one
request costs; for grpcio it counts the client's process while it calls, which has no records, metrics or report to make.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.common import CLIENT_CORE, HERE, Line, Measured, compiled_server, measure, median, pinned, show
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
    """Calls a CPU second with 64 in flight, over so many connections: the same for all."""
    per_cpu: dict[str, list[float]] = {name: [] for name in (*PEERS, "inferometer")}
    for _ in range(ROUNDS):
        for kind in PEERS:
            found = _grpcio(kind, port, CONCURRENCY, connections)
            per_cpu[kind].append(found["calls"] / found["cpu"])
        per_cpu["inferometer"].append(_calls_per_cpu(folder, port, connections))
    facts[f"per_cpu_{connections}"] = per_cpu
    ratio = median(per_cpu["inferometer"]) / max(median(per_cpu[kind]) for kind in PEERS)
    over = f"{CONCURRENCY} in flight, {connections} connection{'s' * (connections > 1)}"
    return [
        *(Line(f"{name}, {over}", f"{median(found):,.0f} calls a CPU second") for name, found in per_cpu.items()),
        Line("inferometer / the better grpcio", f"{ratio:.1f}", ">= 5", ratio >= 5),
    ]


def _latency(folder: str, port: int, facts: dict[str, object]) -> list[Line]:
    """What a client adds to an answer that takes next to nothing."""
    latency: dict[str, list[float]] = {name: [] for name in (*PEERS, "inferometer")}
    for _ in range(ROUNDS):
        for kind in PEERS:
            latency[kind].append(_grpcio(kind, port, 1, 1)["p50"])
        alone = _inferometer(folder, port, 1, "--concurrency", "1", "--duration", f"{SECONDS}s")
        latency["inferometer"].append(alone.summary["metrics"]["e2e_service"]["p50"])
    facts["latency"] = latency
    ratio = median(latency["inferometer"]) / min(median(latency[kind]) for kind in PEERS)
    return [
        *(Line(f"{name}, 1 in flight", f"{median(found) * 1e6:.0f} us p50") for name, found in latency.items()),
        Line("inferometer / the quicker grpcio", f"{ratio:.2f}", "<= 0.33", ratio <= 1 / 3),
    ]


def _grpcio(kind: str, port: int, concurrency: int, connections: int) -> dict[str, float]:
    script = (sys.executable, "-P", HERE / "grpcio_client.py")  # -P: this folder's grpc.py is not grpcio
    command = pinned(CLIENT_CORE, *script, kind, f"127.0.0.1:{port}", concurrency, connections, SECONDS)
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
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
    nothing = _inferometer(folder, port, connections, *options, "--requests", str(CONCURRENCY))
    found = _inferometer(folder, port, connections, *options, "--duration", f"{SECONDS}s")
    return (len(found.run.records.rows) - CONCURRENCY) / (found.cpu - nothing.cpu)


if __name__ == "__main__":
    sys.exit(main())
